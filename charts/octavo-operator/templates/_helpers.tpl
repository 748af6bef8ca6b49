{{- define "octavo.name" -}}
{{- .Release.Name | replace "." "-" | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{- /* Never changed: a Deployment's selector cannot be, so an upgrade from any release depends on it. */ -}}
{{- define "octavo.selector" -}}
app.kubernetes.io/name: octavo-operator
app.kubernetes.io/instance: {{ include "octavo.name" . }}
{{- end }}

{{- define "octavo.labels" -}}
{{ include "octavo.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "octavo.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ default $.Chart.AppVersion .tag }}{{ end }}
{{- end -}}
{{- end }}

{{- /* Namespaces that are served, as a JSON list. */ -}}
{{- define "octavo.namespaces" -}}
{{- default (list .Release.Namespace) .Values.namespaces | sortAlpha | toJson -}}
{{- end }}

{{- /* `a=b,c=d` as a JSON object. */ -}}
{{- define "octavo.labelsOf" -}}
{{- $labels := dict -}}
{{- range splitList "," . | compact }}{{ $pair := splitn "=" 2 . }}{{ $_ := set $labels $pair._0 $pair._1 }}{{ end -}}
{{- $labels | toJson -}}
{{- end }}
