{{- define "kubeproxy.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "kubeproxy.selector" -}}
app.kubernetes.io/name: kubeproxy
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "kubeproxy.labels" -}}
{{ include "kubeproxy.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
k8s-app: kube-proxy
{{- end }}

{{/* Cluster-wide objects carry the release's name, so that two releases do not fight over them. */}}
{{- define "kubeproxy.clusterName" -}}
kubeproxy-{{ .Release.Name }}
{{- end }}

{{- define "kubeproxy.metricsAddress" -}}
{{- if .Values.metrics.bindAddress }}{{ .Values.metrics.bindAddress }}
{{- else if .Values.serviceMonitor.enabled }}0.0.0.0:10249
{{- else }}127.0.0.1:10249
{{- end }}
{{- end }}

{{/* The whole configuration; `config` wins. */}}
{{- define "kubeproxy.config" -}}
{{- $own := dict
  "apiVersion" "kubeproxy.config.k8s.io/v1alpha1"
  "kind" "KubeProxyConfiguration"
  "mode" .Values.mode
  "clusterCIDR" (join "," .Values.clusterCIDRs)
  "healthzBindAddress" "0.0.0.0:10256"
  "metricsBindAddress" (include "kubeproxy.metricsAddress" .)
  "clientConnection" (dict "kubeconfig" "/var/lib/kube-proxy/kubeconfig.conf") -}}
{{- toYaml (mergeOverwrite $own (deepCopy .Values.config)) }}
{{- end }}

{{/* The last part of `address:port`. */}}
{{- define "kubeproxy.portOf" -}}
{{ regexFind "[0-9]+$" . }}
{{- end }}

{{- define "kubeproxy.command" -}}
- /usr/local/bin/kube-proxy
- --config=/var/lib/kube-proxy/config.conf
- --hostname-override=$(NODE_NAME)
{{- range .Values.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{/* What the mode needs, found by test: docs/privileges.md. */}}
{{- define "kubeproxy.capabilities" -}}
{{- $mode := (include "kubeproxy.config" . | fromYaml).mode -}}
{{- $needed := list "NET_ADMIN" -}}
{{- if ne $mode "nftables" }}{{ $needed = append $needed "NET_RAW" }}{{ end -}}
{{- if eq $mode "userspace" }}{{ $needed = append $needed "NET_BIND_SERVICE" }}{{ end -}}
{{- concat $needed .Values.security.extraCapabilities | uniq | toJson }}
{{- end }}

{{- define "kubeproxy.probe" -}}
{{- $config := include "kubeproxy.config" .root | fromYaml -}}
httpGet:
  host: {{ regexReplaceAll ":[0-9]+$" $config.healthzBindAddress "" | replace "0.0.0.0" "127.0.0.1" | replace "[::]" "::1" | trimAll "[]" | quote }}
  path: {{ .path }}
  port: {{ include "kubeproxy.portOf" $config.healthzBindAddress }}
{{ toYaml .times }}
{{- end }}

{{- define "kubeproxy.mounts" -}}
- name: config
  mountPath: /var/lib/kube-proxy
  readOnly: true
- name: xtables-lock
  mountPath: /run/xtables.lock
- name: modules
  mountPath: /lib/modules
  readOnly: true
# The socket of kpctl: kubectl exec POD -- kpctl status
- name: run
  mountPath: /run/kube-proxy
{{- end }}

{{- define "kubeproxy.environment" -}}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
{{- end }}

{{- /* The API server refuses maxSurge beside maxUnavailable, and Helm merges ours with one's own. */ -}}
{{- define "kubeproxy.updateStrategy" -}}
{{- $strategy := deepCopy .Values.updateStrategy -}}
{{- if not (has (dig "rollingUpdate" "maxUnavailable" 0 $strategy | toString) (list "0" "0%")) -}}
{{- $_ := unset $strategy.rollingUpdate "maxSurge" -}}
{{- end -}}
{{ toYaml $strategy }}
{{- end }}
