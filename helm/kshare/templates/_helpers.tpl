{{- define "kshare.name" -}}
{{- .Values.nameOverride | default "kshare" | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/*
The prefix of object names, at most 34 characters: Kubernetes labels a StatefulSet's pods with its name, a hyphen and a hash of
10 characters, together at most 63, and the longest name here is <prefix>-share-coordinator.
*/}}
{{- define "kshare.fullname" -}}
{{- $name := include "kshare.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 34 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 34 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 34 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/*
A value as text. Helm reads the numbers of a values file as floats, and a template writes those from 1,000,000 on as 1e+06,
which is no number to Kafka's configs. A float has 53 bits, so larger whole numbers would change.
*/}}
{{- define "kshare.text" -}}
{{- if not (kindIs "float64" .) -}}
{{ . }}
{{- else if or (gt . 9007199254740992.0) (lt . -9007199254740992.0) -}}
{{- fail (printf "%.0f is a number of more digits than Helm keeps: write it in quotes" .) -}}
{{- else if eq . (floor .) -}}
{{ printf "%.0f" . }}
{{- else -}}
{{ . }}
{{- end -}}
{{- end -}}

{{/* Labels by which a role's pods are selected; a dict with root and role. */}}
{{- define "kshare.selector" -}}
app.kubernetes.io/name: {{ include "kshare.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .role }}
{{- end -}}

{{- define "kshare.labels" -}}
{{ include "kshare.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels of a pod; a dict with root, role and values. */}}
{{- define "kshare.podLabels" -}}
{{ include "kshare.labels" . }}
{{- with .values.podLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "kshare.image" -}}
{{- $problem := "image.registry is needed: there is no public registry with kshare's images yet. Build them (deploy/images), push them, and give where they are, as in --set image.registry=registry.example.com/kshare" -}}
{{ required $problem .root.Values.image.registry }}/{{ .role }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}
{{- end -}}

{{/* "true" where pods have IPv6 addresses, alone or beside those of IPv4. Else empty. */}}
{{- define "kshare.hasIpv6" -}}
{{- $network := .Values.network -}}
{{- if or (has "IPv6" $network.ipFamilies) (has $network.ipFamilyPolicy (list "PreferDualStack" "RequireDualStack")) }}true{{ end -}}
{{- end -}}

{{/* Fails for values that would have no effect, and for contradictions that the schema cannot see; of the chart's root. */}}
{{- define "kshare.checkValues" -}}
{{- $tls := .Values.tls -}}
{{- if not $tls.enabled -}}
{{- $given := dict "secretName" $tls.secretName "certManager.enabled" $tls.certManager.enabled "clientAuth" (ne ($tls.clientAuth | default "none") "none") "plaintext=false" (eq (toString $tls.plaintext) "false") -}}
{{- range $name, $isGiven := $given -}}
{{- if $isGiven }}{{ fail (printf "tls.%s has no effect without tls.enabled: gateways' listeners have no TLS" $name) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- if not $tls.roles.enabled -}}
{{- range $name := list "secretName" "certManager" "job" -}}
{{- if index $tls.roles $name }}{{ fail (printf "tls.roles.%s has no effect without tls.roles.enabled: roles call each other without TLS" $name) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- if and (eq .Values.engine.kafka.mode "proxy") (ne .Values.engine.type "kafka") -}}
{{- fail "engine.kafka.mode=proxy has no effect without engine.type=kafka: the embedded engine serves all clients itself" -}}
{{- end -}}
{{- $scaling := .Values.autoscaling -}}
{{- if $scaling.gateway.enabled }}{{ include "kshare.checkReplicas" (dict "of" "autoscaling.gateway" "values" $scaling.gateway) }}{{ end -}}
{{- if ne $scaling.shareCoordinator.by "none" }}{{ include "kshare.checkReplicas" (dict "of" "autoscaling.shareCoordinator" "values" $scaling.shareCoordinator) }}{{ end -}}
{{- range $scaling.workers }}{{ include "kshare.checkReplicas" (dict "of" (printf "autoscaling.workers: %s" .name) "values" .) }}{{ end -}}
{{- end -}}

{{- define "kshare.checkReplicas" -}}
{{- $least := int (.values.minReplicas | default 0) -}}
{{- if gt $least (int .values.maxReplicas) -}}
{{- fail (printf "%s has minReplicas %d above maxReplicas %d" .of $least (int .values.maxReplicas)) -}}
{{- end -}}
{{- end -}}

{{/* The address families of a Service. */}}
{{- define "kshare.ipFamilies" -}}
{{- with .Values.network.ipFamilyPolicy -}}
ipFamilyPolicy: {{ . }}
{{ end -}}
{{- with .Values.network.ipFamilies -}}
ipFamilies: {{ toJson . }}
{{- end -}}
{{- end -}}

{{- define "kshare.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "kshare.fullname" .) }}
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end -}}
{{- end -}}

{{/* "true" where roles keep nothing on a disk: logs and state are in an existing Kafka cluster. Else empty. */}}
{{- define "kshare.isDisposable" -}}
{{- if eq .Values.engine.type "kafka" }}true{{ end -}}
{{- end -}}

{{- define "kshare.metadataStore" -}}
{{- .Values.metadata.store | default (eq .Values.engine.type "kafka" | ternary "kafka" "rocksdb") -}}
{{- end -}}

{{/* "true" where roles connect to an existing Kafka cluster. Else empty. */}}
{{- define "kshare.hasUpstream" -}}
{{- if or (eq .Values.engine.type "kafka") (eq (include "kshare.metadataStore" .) "kafka") }}true{{ end -}}
{{- end -}}

{{/* "true" where all clients of an existing cluster connect to gateways. Else empty. */}}
{{- define "kshare.isProxy" -}}
{{- if and (eq .Values.engine.type "kafka") (eq .Values.engine.kafka.mode "proxy") }}true{{ end -}}
{{- end -}}

{{/*
Gateways bind the ports that clients are told for brokers, so those are the same inside and outside. Inside they are between
the pod's other ports, of which 9191 is the next one after 9100.
*/}}
{{- define "kshare.firstProxyPort" -}}
{{- $inside := gt (int .Values.engine.kafka.proxyPorts) 90 | ternary 9500 9100 -}}
{{- eq .Values.gateway.external.type "none" | ternary $inside (add (int .Values.gateway.external.port) 1) -}}
{{- end -}}

{{- define "kshare.lastProxyPort" -}}
{{- add (int (include "kshare.firstProxyPort" .)) (int .Values.engine.kafka.proxyPorts) -1 -}}
{{- end -}}

{{/* Fails where a port for a broker is one that a gateway's pod uses otherwise, or none; of the chart's root. */}}
{{- define "kshare.checkProxyPorts" -}}
{{- $first := int (include "kshare.firstProxyPort" .) -}}
{{- $last := int (include "kshare.lastProxyPort" .) -}}
{{- $own := list 9191 9464 -}}
{{- if include "kshare.hasPlaintext" . -}}{{- $own = append $own 9092 -}}{{- end -}}
{{- if .Values.tls.enabled -}}{{- $own = append $own 9093 -}}{{- end -}}
{{- range $port := $own -}}
{{- if and (le $first $port) (le $port $last) -}}
{{- fail (printf "engine.kafka.mode=proxy: gateways' ports for brokers would be %d-%d (gateway.external.port + 1 on, engine.kafka.proxyPorts many), but their pods use port %d otherwise: set another gateway.external.port, such as 30092" $first $last $port) -}}
{{- end -}}
{{- end -}}
{{- if gt $last 65535 -}}
{{- fail (printf "engine.kafka.mode=proxy: gateways' ports for brokers would be %d-%d (gateway.external.port + 1 on, engine.kafka.proxyPorts many), but 65535 is the last port there is" $first $last) -}}
{{- end -}}
{{- end -}}

{{/* Ports of a Service for the brokers of the cluster, empty without mode=proxy; a dict with root and isNodePort. */}}
{{- define "kshare.proxyPorts" -}}
{{- if include "kshare.isProxy" .root -}}
{{- $first := int (include "kshare.firstProxyPort" .root) -}}
{{- $isNodePort := .isNodePort -}}
{{- range $number := until (int .root.Values.engine.kafka.proxyPorts) -}}
{{- $port := add $first $number }}
- {name: broker-{{ $number }}, port: {{ $port }}, targetPort: {{ $port }}{{ if $isNodePort }}, nodePort: {{ $port }}{{ end }}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The kind of the workload of a role other than the gateway. */}}
{{- define "kshare.roleKind" -}}
{{- eq .Values.engine.type "kafka" | ternary "Deployment" "StatefulSet" -}}
{{- end -}}

{{/*
All coordinators, each by a Service of its own: any may be the active one. The address of a Service stays while pods come
and go; a pod's name would be remembered with its old address for some seconds. With TLS between roles it is the pods' names
all the same: those are in the certificate.

Pods of a Deployment have one Service together: the coordinator that a role reaches by it names the active one, and from then
on the role knows the addresses of all.
*/}}
{{- define "kshare.coordinatorAddresses" -}}
{{- $name := printf "%s-coordinator" (include "kshare.fullname" .) -}}
{{- if include "kshare.isDisposable" . -}}
{{- printf "%ss.%s.svc:9190" $name .Release.Namespace -}}
{{- else -}}
{{- $addresses := list -}}
{{- range $ordinal := until (int .Values.coordinator.replicas) -}}
{{- $service := $.Values.tls.roles.enabled | ternary (printf ".%s" $name) "" -}}
{{- $addresses = append $addresses (printf "%s-%d%s.%s.svc:9190" $name $ordinal $service $.Release.Namespace) -}}
{{- end -}}
{{- join "," $addresses -}}
{{- end -}}
{{- end -}}

{{/* What all pods have; a dict with root, role and values. */}}
{{- define "kshare.podSpec" -}}
serviceAccountName: {{ include "kshare.serviceAccountName" .root }}
automountServiceAccountToken: {{ and (has .role (list "share-coordinator" "leader")) (not (include "kshare.isDisposable" .root)) }}
terminationGracePeriodSeconds: {{ .values.terminationGracePeriodSeconds }}
securityContext:
  {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.priorityClassName | default .root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .values.affinity }}
affinity:
  {{- toYaml .values.affinity | nindent 2 }}
{{- else }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "kshare.selector" . | nindent 14 }}
{{- end }}
{{- if .values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range .values.topologySpreadConstraints }}
  - {{- toYaml (omit . "labelSelector") | nindent 4 }}
    labelSelector:
      {{- if .labelSelector }}
      {{- toYaml .labelSelector | nindent 6 }}
      {{- else }}
      matchLabels:
        {{- include "kshare.selector" $ | nindent 8 }}
      {{- end }}
  {{- end }}
{{- else if .root.Values.spread.topologyKeys }}
topologySpreadConstraints:
  {{- range .root.Values.spread.topologyKeys }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "kshare.selector" $ | nindent 8 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/*
What the pods of hooks have of the values: the Job of tls.roles.job, and `helm test`. `helm upgrade --reuse-values` from a
chart without `hooks` brings none.
*/}}
{{- define "kshare.hookPodSpec" -}}
{{- $hooks := .Values.hooks | default dict -}}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $hooks.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $hooks.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Of a container; of the chart's root. */}}
{{- define "kshare.securityContext" -}}
{{ toYaml .Values.containerSecurityContext }}
{{- end -}}

{{/* Further variables of a container, those of all roles first; a dict with root and values. */}}
{{- define "kshare.extraEnvironment" -}}
{{- with concat .root.Values.extraEnv (.values.extraEnv | default list) -}}
{{ toYaml . }}
{{- end -}}
{{- end -}}

{{- define "kshare.environment" -}}
- {name: KSHARE_CONFIG, value: /etc/kshare/kshare.properties}
{{- if .root.Values.configSecret }}
- {name: KSHARE_CONFIG_SECRET, value: /etc/kshare-secret/kshare.properties}
{{- end }}
{{- if and (include "kshare.hasUpstream" .root) .root.Values.engine.kafka.configSecret }}
- {name: KSHARE_CONFIG_UPSTREAM, value: /etc/kshare-upstream/kshare.properties}
{{- end }}
- {name: KSHARE_LOG_FORMAT, value: {{ .root.Values.logs.format }}}
- {name: KSHARE_LOG_LEVEL, value: {{ .root.Values.logs.level }}}
{{- if include "kshare.hasIpv6" .root }}
- {name: KSHARE_LISTEN, value: "[::]:9190"}
- {name: KSHARE_OPERATIONS_LISTEN, value: "[::]:9191"}
- {name: KSHARE_METRICS_LISTEN, value: "[::]:9464"}
{{- end }}
- {name: KSHARE_COORDINATOR_ADDRESS, value: {{ include "kshare.coordinatorAddresses" .root | quote }}}
{{- with .root.Values.tracing.endpoint }}
- {name: KSHARE_TRACE_ENDPOINT, value: {{ . | quote }}}
- {name: KSHARE_TRACE_RATIO, value: {{ $.root.Values.tracing.ratio | quote }}}
{{- with $.root.Values.tracing.caSecret }}
- {name: OTEL_EXPORTER_OTLP_CERTIFICATE, value: /etc/kshare-tracing/ca.crt}
{{- end }}
{{- with $.root.Values.tracing.headersSecret }}
- name: OTEL_EXPORTER_OTLP_HEADERS
  valueFrom: {secretKeyRef: {name: {{ . }}, key: headers}}
{{- end }}
{{- end }}
{{- end -}}

{{/*
It has started when its store is open and it answers, ready is it while it can do its work, and alive as long as its
event loop answers: one that waits for another role is neither dead nor ready.
*/}}
{{- define "kshare.probes" -}}
startupProbe:
  grpc: {port: 9191, service: liveness}
  periodSeconds: 1
  timeoutSeconds: 3
  failureThreshold: 300
readinessProbe:
  grpc: {port: 9191}
  periodSeconds: 3
  timeoutSeconds: 3
  failureThreshold: 2
livenessProbe:
  grpc: {port: 9191, service: liveness}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end -}}

{{/*
How long 95 of 100 state writes take, as leaders see them; 0 while they write none. Without samples of leaders, as while
Prometheus does not reach them, it has no value, and an autoscaler changes nothing.
*/}}
{{- define "kshare.stateWriteSecondsQuery" -}}
{{- $selector := printf "namespace=%q,release=%q,service=\"ShareCoordinator\",method=\"WriteShareGroupState\"" .Release.Namespace .Release.Name -}}
histogram_quantile(0.95, sum by (le) (rate(kshare_rpc_client_call_duration_seconds_bucket{ {{- $selector -}} }[2m]))) > 0 or 0 * sum(kshare_rpc_client_call_duration_seconds_count{ {{- $selector -}} })
{{- end -}}

{{/* State partitions move with each step: one pod at a time, and down only after a while. */}}
{{- define "kshare.stateScalingBehavior" -}}
scaleUp:
  stabilizationWindowSeconds: 60
  policies: [{type: Pods, value: 1, periodSeconds: 60}]
scaleDown:
  stabilizationWindowSeconds: {{ .Values.autoscaling.shareCoordinator.scaleDownAfterSeconds }}
  policies: [{type: Pods, value: 1, periodSeconds: {{ min 1800 (int .Values.shareCoordinator.terminationGracePeriodSeconds) }}}]
{{- end -}}

{{- define "kshare.kedaAuthentication" -}}
{{- with .Values.autoscaling.keda.triggerAuthentication -}}
authenticationRef: {name: {{ . }}}
{{- end -}}
{{- end -}}

{{/* Secrets as files: configs of every role, and at coordinators what etcd's TLS needs; a dict with root and role. */}}
{{- define "kshare.secretMounts" -}}
{{- if .root.Values.configSecret -}}
- {name: config-secret, mountPath: /etc/kshare-secret, readOnly: true}
{{ end -}}
{{- if and .root.Values.tracing.endpoint .root.Values.tracing.caSecret -}}
- {name: tracing, mountPath: /etc/kshare-tracing, readOnly: true}
{{ end -}}
{{- if and (include "kshare.hasUpstream" .root) .root.Values.engine.kafka.configSecret -}}
- {name: upstream, mountPath: /etc/kshare-upstream, readOnly: true}
{{ end -}}
{{- if and (eq .role "coordinator") .root.Values.metadata.etcd.tlsSecret -}}
- {name: etcd-tls, mountPath: /etc/kshare-etcd, readOnly: true}
{{ end -}}
{{- if and (eq .role "gateway") .root.Values.tls.enabled -}}
- {name: tls, mountPath: /etc/kshare-tls, readOnly: true}
{{ end -}}
{{- if .root.Values.tls.roles.enabled -}}
- {name: roles-tls, mountPath: /etc/kshare-roles-tls, readOnly: true}
{{- end -}}
{{- end -}}

{{- define "kshare.secretVolumes" -}}
{{- with .root.Values.configSecret -}}
- {name: config-secret, secret: {secretName: {{ . }}}}
{{ end -}}
{{- if and .root.Values.tracing.endpoint .root.Values.tracing.caSecret -}}
- {name: tracing, secret: {secretName: {{ .root.Values.tracing.caSecret }}}}
{{ end -}}
{{- if and (include "kshare.hasUpstream" .root) .root.Values.engine.kafka.configSecret -}}
- {name: upstream, secret: {secretName: {{ .root.Values.engine.kafka.configSecret }}, defaultMode: 0440}}
{{ end -}}
{{- if and (eq .role "coordinator") .root.Values.metadata.etcd.tlsSecret -}}
- {name: etcd-tls, secret: {secretName: {{ .root.Values.metadata.etcd.tlsSecret }}}}
{{ end -}}
{{- if and (eq .role "gateway") .root.Values.tls.enabled -}}
- {name: tls, secret: {secretName: {{ include "kshare.tlsSecret" .root }}, defaultMode: 0440}}
{{ end -}}
{{- if .root.Values.tls.roles.enabled -}}
- {name: roles-tls, secret: {secretName: {{ include "kshare.rolesTlsSecret" . }}, defaultMode: 0440}}
{{- end -}}
{{- end -}}

{{/* The Secret with the certificate that a role shows to the others; a dict with root and role. */}}
{{- define "kshare.rolesTlsSecret" -}}
{{- if .root.Values.tls.roles.secretName -}}
{{ .root.Values.tls.roles.secretName }}
{{- else if or .root.Values.tls.roles.certManager .root.Values.tls.roles.job -}}
{{ include "kshare.fullname" .root }}-{{ .role }}-roles-tls
{{- else -}}
{{- fail "tls.roles.secretName is needed with tls.roles.enabled, or tls.roles.certManager, or tls.roles.job" }}
{{- end -}}
{{- end -}}

{{/* The Secret with the gateways' certificate. */}}
{{- define "kshare.tlsSecret" -}}
{{- if .Values.tls.secretName -}}
{{ .Values.tls.secretName }}
{{- else if .Values.tls.certManager.enabled -}}
{{ include "kshare.fullname" . }}-gateway-tls
{{- else -}}
{{- fail "tls.secretName is needed with tls.enabled, or tls.certManager.enabled" }}
{{- end -}}
{{- end -}}

{{/*
"true" where gateways have a listener of their own for clients outside of the cluster. Else empty: there are none, or a
gateway has a port for each broker (mode=proxy), of one listener only.
*/}}
{{- define "kshare.hasOutside" -}}
{{- if and (ne .Values.gateway.external.type "none") (not (include "kshare.isProxy" .)) }}true{{ end -}}
{{- end -}}

{{/* "true" where gateways have a listener without TLS for clients inside. Else empty. */}}
{{- define "kshare.hasPlaintext" -}}
{{- if or (not .Values.tls.enabled) .Values.tls.plaintext }}true{{ end -}}
{{- end -}}

{{/*
"true" where a client with what the chart knows can connect to the listener without TLS: `helm test` is there then. SASL needs
the Secret of toolbox.clientConfigSecret, and an existing cluster with credentials asks clients for its own.
*/}}
{{- define "kshare.hasTest" -}}
{{- $map := index .Values.config "listener.security.protocol.map" | default "" -}}
{{- $needsUser := and (regexMatch "(?i)(^|,)\\s*PLAINTEXT\\s*:\\s*SASL" $map) (not .Values.toolbox.clientConfigSecret) -}}
{{- $isForeign := and (eq .Values.engine.type "kafka") (ne .Values.engine.kafka.configSecret "") -}}
{{- if and (include "kshare.hasPlaintext" .) (not $needsUser) (not $isForeign) }}true{{ end -}}
{{- end -}}

{{/* Where a gateway's process listens. */}}
{{- define "kshare.listeners" -}}
{{- $host := empty (include "kshare.hasIpv6" .) | ternary "0.0.0.0" "" -}}
{{- $found := list -}}
{{- if include "kshare.hasPlaintext" . -}}{{- $found = append $found (printf "PLAINTEXT://%s:9092" $host) -}}{{- end -}}
{{- if .Values.tls.enabled -}}{{- $found = append $found (printf "SSL://%s:9093" $host) -}}{{- end -}}
{{- if include "kshare.hasOutside" . -}}{{- $found = append $found (printf "EXTERNAL://%s:9094" $host) -}}{{- end -}}
{{- join "," $found -}}
{{- end -}}

{{/*
What clients of each listener are told; a dict with root and outside, the address for those outside of the cluster. Inside
it is the pod's own address, and with TLS the name of the Service, which is in the certificate.
*/}}
{{- define "kshare.advertisedListeners" -}}
{{- $values := .root.Values -}}
{{- $isProxyOutside := and (ne (include "kshare.isProxy" .root) "") (ne $values.gateway.external.type "none") -}}
{{- $found := list -}}
{{- if include "kshare.hasPlaintext" .root -}}
{{- $found = append $found (printf "PLAINTEXT://%s" ($isProxyOutside | ternary .outside "$(POD_IP):9092")) -}}
{{- end -}}
{{- if $values.tls.enabled -}}
{{- $service := printf "%s-gateway.%s.svc:9093" (include "kshare.fullname" .root) .root.Release.Namespace -}}
{{- $found = append $found (printf "SSL://%s" ($isProxyOutside | ternary .outside $service)) -}}
{{- end -}}
{{- if include "kshare.hasOutside" .root -}}{{- $found = append $found (printf "EXTERNAL://%s" .outside) -}}{{- end -}}
{{- join "," $found -}}
{{- end -}}

{{/* An address as it stands before a port: of IPv6 in brackets. */}}
{{- define "kshare.hostBeforePort" -}}
{{- if and (contains ":" .) (not (hasPrefix "[" .)) -}}[{{ . }}]{{- else -}}{{ . }}{{- end -}}
{{- end -}}

{{/* The security protocol of a listener; a dict with root and listener. */}}
{{- define "kshare.listenerProtocol" -}}
{{- $map := index .root.Values.config "listener.security.protocol.map" | default "" -}}
{{- if eq .listener "EXTERNAL" -}}{{- $map = include "kshare.protocolMap" .root -}}{{- end -}}
{{- regexFind (printf "(?i)(^|,)\\s*%s\\s*:\\s*[A-Z_]+" .listener) $map | splitList ":" | last | trim | upper | default .listener -}}
{{- end -}}

{{/* The config listener.security.protocol.map, with the listener for clients outside of the cluster. */}}
{{- define "kshare.protocolMap" -}}
{{- $map := index .Values.config "listener.security.protocol.map" | default "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL" -}}
{{- $inside := .Values.tls.enabled | ternary "SSL" "PLAINTEXT" -}}
{{- $given := include "kshare.listenerProtocol" (dict "root" . "listener" $inside) -}}
{{- $protocol := .Values.gateway.external.protocol | default $given -}}
{{- if and (hasSuffix "SSL" $protocol) (not .Values.tls.enabled) -}}
{{- fail (printf "gateway.external.protocol=%s needs tls.enabled: gateways have no certificate" $protocol) -}}
{{- end -}}
{{- regexMatch "(?i)(^|,)\\s*EXTERNAL\\s*:" $map | ternary $map (printf "%s,EXTERNAL:%s" $map $protocol) -}}
{{- end -}}

{{/* The hosts that clients outside are told: one for each gateway with perGateway, else one; a list in JSON. */}}
{{- define "kshare.outsideHosts" -}}
{{- $external := .Values.gateway.external -}}
{{- if eq $external.type "none" -}}
[]
{{- else if ne $external.type "perGateway" -}}
{{- list (required "gateway.external.host is needed: what clients outside are told to connect to" $external.host) | toJson -}}
{{- else if $external.hosts -}}
{{- if lt (len $external.hosts) (int .Values.gateway.replicas) -}}
{{- fail (printf "gateway.external.hosts has %d hosts for %d gateways: each gateway needs one" (len $external.hosts) (int .Values.gateway.replicas)) -}}
{{- end -}}
{{- $external.hosts | toJson -}}
{{- else -}}
{{- $host := required "gateway.external.host is needed: what clients outside are told to connect to" $external.host -}}
{{- if and (eq $external.perGatewayService "LoadBalancer") (not (contains "{ordinal}" $host)) (gt (int .Values.gateway.replicas) 1) -}}
{{- fail "gateway.external.hosts, or {ordinal} in gateway.external.host, is needed with perGatewayService=LoadBalancer: each gateway has an address of its own" -}}
{{- end -}}
{{- $hosts := list -}}
{{- range $ordinal := until (int .Values.gateway.replicas) -}}
{{- $hosts = append $hosts (replace "{ordinal}" (toString $ordinal) $host) -}}
{{- end -}}
{{- $hosts | toJson -}}
{{- end -}}
{{- end -}}

{{/* Fields of a Service for clients outside, from its type on; a dict with root and type. */}}
{{- define "kshare.outsideService" -}}
{{- $external := .root.Values.gateway.external -}}
type: {{ .type }}
{{- with include "kshare.ipFamilies" .root }}
{{ . | trim }}
{{- end }}
{{- with $external.trafficPolicy }}
externalTrafficPolicy: {{ . }}
{{- end }}
{{- if eq .type "LoadBalancer" }}
{{- with $external.loadBalancerClass }}
loadBalancerClass: {{ . }}
{{- end }}
{{- with $external.sourceRanges }}
loadBalancerSourceRanges:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- else if $external.sourceRanges }}
{{- fail "gateway.external.sourceRanges needs a load balancer (type=loadBalancer, or perGatewayService=LoadBalancer): for node ports use networkPolicy.clients" }}
{{- end }}
{{- end -}}

{{/* Why the NetworkPolicy of gateways may refuse clients outside that it names; else empty. */}}
{{- define "kshare.addressesLost" -}}
{{- $external := .Values.gateway.external -}}
{{- $named := list -}}
{{- if and $external.sourceRanges (or (include "kshare.hasOutside" .) .Values.networkPolicy.clients) -}}
{{- $named = append $named "gateway.external.sourceRanges" -}}
{{- end -}}
{{- if contains "ipBlock" (toJson .Values.networkPolicy.clients) -}}{{- $named = append $named "networkPolicy.clients" -}}{{- end -}}
{{- if and .Values.networkPolicy.enabled (ne $external.type "none") (ne $external.trafficPolicy "Local") $named -}}
set gateway.external.trafficPolicy=Local. Without it nodes replace the addresses of clients outside by their own, and the gateways' NetworkPolicy refuses clients that {{ join " and " $named }} would let in.
{{- end -}}
{{- end -}}

{{/* Ports of a gateway that clients inside of the cluster connect to; a list of Service ports. */}}
{{- define "kshare.clientPorts" -}}
{{- if or (not .Values.tls.enabled) .Values.tls.plaintext -}}
- {name: kafka, port: 9092, targetPort: kafka}
{{ end -}}
{{- if .Values.tls.enabled -}}
- {name: kafka-tls, port: 9093, targetPort: kafka-tls}
{{- end -}}
{{- end -}}

{{/*
How many pods a workload has; a dict with root, kind, name, values, isScaled and keeps. What an autoscaler scales keeps the
number that it has: left out, an upgrade that switches the autoscaler on would take the field away, and Kubernetes would make
it 1. With `keeps` (keepReplicas) so does what someone scaled by hand; the value counts for the first installation.
*/}}
{{- define "kshare.replicas" -}}
{{- $found := dict -}}
{{- if or .isScaled .keeps -}}
{{- $found = lookup "apps/v1" .kind .root.Release.Namespace .name -}}
{{- end -}}
{{- if $found -}}
replicas: {{ $found.spec.replicas }}
{{- else if not .isScaled -}}
replicas: {{ .values.replicas }}
{{- end -}}
{{- end -}}

{{/* A StatefulSet's volumes; a dict with root, role, values. */}}
{{- define "kshare.volumeClaims" -}}
{{- $retention := .values.storage.retention -}}
{{- if or (ne $retention.whenDeleted "Retain") (ne $retention.whenScaled "Retain") }}
persistentVolumeClaimRetentionPolicy: {whenDeleted: {{ $retention.whenDeleted }}, whenScaled: {{ $retention.whenScaled }}}
{{- end }}
volumeClaimTemplates:
  - metadata:
      name: data
      labels:
        {{- include "kshare.selector" . | nindent 8 }}
      {{- with .values.storage.annotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      accessModes: [ReadWriteOnce]
      {{- with .values.storage.className }}
      storageClassName: {{ . }}
      {{- end }}
      resources:
        requests: {storage: {{ .values.storage.size }}}
{{- end -}}

{{/*
A role other than the gateway, and its headless Service; a dict with root, role, values, drains and isScaled. It is a
StatefulSet with volumes, or, where roles keep nothing on a disk, a Deployment: a pod's node id is that of its address then,
and nothing is handed over before it stops.
*/}}
{{- define "kshare.role" -}}
{{- $name := printf "%s-%s" (include "kshare.fullname" .root) .role -}}
{{- $kind := include "kshare.roleKind" .root -}}
{{- $isDisposable := include "kshare.isDisposable" .root -}}
{{- $drains := and .drains (not $isDisposable) -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ $name }}
  labels:
    {{- include "kshare.labels" . | nindent 4 }}
spec:
  clusterIP: None
  {{- with include "kshare.ipFamilies" .root }}
  {{- . | trim | nindent 2 }}
  {{- end }}
  # Roles resolve each other before they are ready: the coordinator starts alone, and the others wait for it.
  publishNotReadyAddresses: true
  selector:
    {{- include "kshare.selector" . | nindent 4 }}
  ports:
    - {name: grpc, port: 9190}
    - {name: operations, port: 9191}
---
apiVersion: apps/v1
kind: {{ $kind }}
metadata:
  name: {{ $name }}
  labels:
    {{- include "kshare.labels" . | nindent 4 }}
  {{- with .values.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- if not $isDisposable }}
  serviceName: {{ $name }}
  {{- end }}
  {{- with include "kshare.replicas" (dict "root" .root "kind" $kind "name" $name "values" .values "isScaled" .isScaled "keeps" (and .root.Values.keepReplicas (ne .role "coordinator"))) }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- if $isDisposable }}
  # A new pod serves before an old one stops, which gives its partitions to the others when it does.
  strategy:
    rollingUpdate: {maxSurge: 1, maxUnavailable: 0}
  {{- else }}
  podManagementPolicy: Parallel
  {{- end }}
  selector:
    matchLabels:
      {{- include "kshare.selector" . | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "kshare.podLabels" . | nindent 8 }}
      annotations:
        checksum/config: {{ include (print .root.Template.BasePath "/configmap.yaml") .root | sha256sum }}
        {{- with .values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      {{- include "kshare.podSpec" . | nindent 6 }}
      containers:
        - name: {{ .role }}
          image: {{ include "kshare.image" . }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          securityContext:
            {{- include "kshare.securityContext" .root | nindent 12 }}
          env:
            {{- include "kshare.environment" . | nindent 12 }}
            - name: POD_NAME
              valueFrom: {fieldRef: {fieldPath: metadata.name}}
            {{- if $isDisposable }}
            - {name: KSHARE_NODE_ID, value: address}
            {{- if .root.Values.tls.roles.enabled }}
            - {name: KSHARE_ADVERTISED_SERVICE, value: {{ $name }}.{{ .root.Release.Namespace }}.svc}
            {{- end }}
            {{- else if .root.Values.tls.roles.enabled }}
            - {name: KSHARE_ADVERTISED_ADDRESS, value: "$(POD_NAME).{{ $name }}.{{ .root.Release.Namespace }}.svc:9190"}
            {{- else if eq .role "coordinator" }}
            - {name: KSHARE_ADVERTISED_ADDRESS, value: "$(POD_NAME).{{ .root.Release.Namespace }}.svc:9190"}
            {{- end }}
            {{- if $drains }}
            - {name: KSHARE_SCALE_DOWN_TIMEOUT_S, value: "{{ sub .values.terminationGracePeriodSeconds 30 }}"}
            {{- end }}
            {{- with include "kshare.extraEnvironment" . }}
            {{- . | nindent 12 }}
            {{- end }}
          ports:
            - {name: grpc, containerPort: 9190}
            - {name: operations, containerPort: 9191}
            - {name: metrics, containerPort: 9464}
          {{- include "kshare.probes" . | nindent 10 }}
          {{- if $drains }}
          lifecycle:
            preStop:
              exec: {command: [python, -m, kshare_servicekit.scale_down, {{ .role }}]}
          {{- end }}
          resources:
            {{- toYaml .values.resources | nindent 12 }}
          volumeMounts:
            {{- if not $isDisposable }}
            - {name: data, mountPath: /var/lib/kshare}
            {{- end }}
            - {name: config, mountPath: /etc/kshare, readOnly: true}
            {{- with include "kshare.secretMounts" . }}
            {{- . | trim | nindent 12 }}
            {{- end }}
            - {name: tmp, mountPath: /tmp}
      volumes:
        - name: config
          configMap: {name: {{ include "kshare.fullname" .root }}}
        {{- with include "kshare.secretVolumes" . }}
        {{- . | trim | nindent 8 }}
        {{- end }}
        - name: tmp
          emptyDir: {sizeLimit: 64Mi}
  {{- if not $isDisposable }}
  {{- include "kshare.volumeClaims" . | trim | nindent 2 }}
  {{- end }}
{{- end -}}
