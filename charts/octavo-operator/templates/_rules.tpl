{{- /*
What the operator may do where it serves. Each verb is one it uses, each use has its verb; a test compares this list
with the audit log. No Secret, no pod creation, no exec, no roles.
*/ -}}
{{- define "octavo.rules" -}}
- apiGroups: [octavo.dev]
  resources: [inferenceservices]
  verbs: [get, list, watch]
- apiGroups: [octavo.dev]
  resources: [inferenceservices/status]
  verbs: [patch]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [serviceaccounts, configmaps]
  verbs: [get, list, watch, create, patch]
# Preflights and loaders: never changed, and deleted when they are not needed any more.
- apiGroups: [batch]
  resources: [jobs]
  verbs: [list, watch, create, delete]
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors, prometheusrules]
  verbs: [get, create, patch]
# Patch: the deletion cost of the replica that goes first when the count is lowered.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, patch]
# List: the kubelet tells in Events alone which Secret or volume a pod waits for.
- apiGroups: [""]
  resources: [events]
  verbs: [list, create]
{{- end }}
