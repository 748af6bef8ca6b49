{{- /*
The settings of `octavo-operator run`, as variables rather than flags: a patch can then name the one it changes.
What the pod itself knows is not written down, so that the objects may be moved to another namespace as they are.
*/ -}}
{{- define "octavo.environment" -}}
- {name: OCTAVO_OPERATOR_ENGINE_IMAGE, value: {{ .Values.engineImage | quote }}}
{{- if .Values.clusterWide }}
- {name: OCTAVO_OPERATOR_NAMESPACES, value: ""}
{{- else if .Values.namespaces }}
- {name: OCTAVO_OPERATOR_NAMESPACES, value: {{ include "octavo.namespaces" . | fromJsonArray | join "," | quote }}}
{{- else }}
- {name: OCTAVO_OPERATOR_NAMESPACES, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
{{- end }}
- {name: OCTAVO_OPERATOR_LEASE_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
- {name: OCTAVO_OPERATOR_LEASE_NAME, value: {{ include "octavo.name" . | quote }}}
- {name: OCTAVO_OPERATOR_LEASE_SECONDS, value: {{ .Values.lease.seconds | quote }}}
# The Lease names its holder: unique, and telling which pod acts.
- {name: OCTAVO_OPERATOR_IDENTITY, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
- {name: OCTAVO_OPERATOR_WORKERS, value: {{ .Values.workers | quote }}}
- {name: OCTAVO_OPERATOR_SCRAPE_SECONDS, value: {{ .Values.intervals.scrape | quote }}}
- {name: OCTAVO_OPERATOR_SCRAPE_TIMEOUT_SECONDS, value: {{ .Values.intervals.scrapeTimeout | quote }}}
- {name: OCTAVO_OPERATOR_SCALE_DOWN_SECONDS, value: {{ .Values.intervals.scaleDown | quote }}}
- {name: OCTAVO_OPERATOR_HEARTBEAT_SECONDS, value: {{ .Values.intervals.heartbeat | quote }}}
- {name: OCTAVO_OPERATOR_RESYNC_SECONDS, value: {{ .Values.intervals.resync | quote }}}
- {name: OCTAVO_OPERATOR_API_TIMEOUT_SECONDS, value: {{ .Values.intervals.apiTimeout | quote }}}
# Whom the services' NetworkPolicies let in beside their clients.
- {name: OCTAVO_OPERATOR_OPERATOR_PODS, value: {{ include "octavo.selector" . | replace ": " "=" | replace "\n" "," | quote }}}
- {name: OCTAVO_OPERATOR_PROMETHEUS_PODS, value: {{ .Values.prometheus.pods | quote }}}
- {name: OCTAVO_OPERATOR_PROMETHEUS_NAMESPACES, value: {{ .Values.prometheus.namespaces | quote }}}
- {name: OCTAVO_OPERATOR_MANAGEMENT_ADDRESSES, value: {{ .Values.prometheus.addresses | join "," | quote }}}
- {name: OCTAVO_OPERATOR_CACHE_GROUP, value: {{ .Values.cacheGroup | quote }}}
- {name: OCTAVO_OPERATOR_LOG_LEVEL, value: {{ .Values.log.level | quote }}}
- {name: OCTAVO_OPERATOR_LOG_FORMAT, value: {{ .Values.log.format | quote }}}
{{- end }}

{{- /* Constraints as given, about the operator's pods where they do not say; by default replicas avoid one node. */ -}}
{{- define "octavo.spread" -}}
{{- $soft := dict "maxSkew" 1 "topologyKey" "kubernetes.io/hostname" "whenUnsatisfiable" "ScheduleAnyway" -}}
{{- $wanted := .Values.topologySpreadConstraints -}}
{{- if and (not $wanted) (gt (int .Values.replicas) 1) -}}
{{- $wanted = list $soft -}}
{{- end -}}
{{- $ours := dict "labelSelector" (dict "matchLabels" (include "octavo.selector" . | fromYaml)) -}}
{{- $constraints := list -}}
{{- range $wanted -}}
{{- $constraints = append $constraints (hasKey . "labelSelector" | ternary . (merge (dict) . $ours)) -}}
{{- end -}}
{{- with $constraints -}}
topologySpreadConstraints: {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end }}
