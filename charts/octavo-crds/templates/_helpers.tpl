{{- define "octavo.labels" -}}
app.kubernetes.io/name: octavo-crds
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}
