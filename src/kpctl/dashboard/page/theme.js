// Dark and light: as the system says, unless a person chose. The choice is kept for this page only
// as long as the browser keeps it; a browser that keeps nothing is fine.

const KEY = "kpctl-theme";

export function startTheme(select) {
  select.value = remembered();
  apply(select.value);
  select.addEventListener("change", () => {
    apply(select.value);
    try {
      localStorage.setItem(KEY, select.value);
    } catch { /* storage is switched off: the choice lasts as long as the page */ }
  });
}

function remembered() {
  try {
    return localStorage.getItem(KEY) ?? "";
  } catch {
    return "";
  }
}

function apply(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}
