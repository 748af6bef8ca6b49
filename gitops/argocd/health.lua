-- Health of an octavo.dev/InferenceService for Argo CD (Lua 5.1): what the operator says, in Argo CD's four words.
-- Argo CD finds it in the ConfigMap argocd-cm, under resource.customizations.health.octavo.dev_InferenceService.

local function condition(kind)
  if obj.status ~= nil and obj.status.conditions ~= nil then
    for _, item in ipairs(obj.status.conditions) do
      if item.type == kind then
        return item
      end
    end
  end
  return nil
end

local function verdict(status, message)
  return { status = status, message = message }
end

local function told(item)
  if item.message == nil or item.message == "" then
    return item.reason
  end
  return item.reason .. ": " .. item.message
end

if obj.metadata ~= nil and obj.metadata.deletionTimestamp ~= nil then
  return verdict("Progressing", "The service is being deleted")
end

if obj.spec ~= nil and obj.spec.paused == true then
  return verdict("Suspended", "spec.paused is true: changes are not applied")
end

-- The operator has not looked yet, or not since the last change: nothing else in status speaks of this spec.
if obj.status == nil or obj.status.observedGeneration ~= obj.metadata.generation then
  return verdict("Progressing", "Waiting for the operator to see the latest change")
end

local stalled = condition("Stalled")
if stalled ~= nil and stalled.status == "True" then
  return verdict("Degraded", told(stalled))
end

local reconciling = condition("Reconciling")
if reconciling ~= nil and reconciling.status == "True" then
  return verdict("Progressing", told(reconciling))
end

local ready = condition("Ready")
if ready == nil then
  return verdict("Progressing", "Waiting for the first status")
end
if ready.status == "True" then
  return verdict("Healthy", told(ready))
end
return verdict("Progressing", told(ready))
