{{- define "kshare.name" -}}
{{- .Values.nameOverride | default "kshare" | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "kshare.fullname" -}}
{{- $name := include "kshare.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
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
{{- end -}}

{{- define "kshare.image" -}}
{{ .root.Values.image.registry }}/{{ .role }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}
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

{{/* Gateways bind the ports that clients are told for brokers, so those are the same inside and outside. */}}
{{- define "kshare.firstProxyPort" -}}
{{- eq .Values.gateway.external.type "none" | ternary 9100 (add (int .Values.gateway.external.port) 1) -}}
{{- end -}}

{{- define "kshare.lastProxyPort" -}}
{{- add (int (include "kshare.firstProxyPort" .)) (int .Values.engine.kafka.proxyPorts) -1 -}}
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
{{- with .root.Values.spread.topologyKeys }}
topologySpreadConstraints:
  {{- range . }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "kshare.selector" $ | nindent 8 }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "kshare.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
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
- {name: KSHARE_COORDINATOR_ADDRESS, value: {{ include "kshare.coordinatorAddresses" .root | quote }}}
{{- with .root.Values.tracing.endpoint }}
- {name: KSHARE_TRACE_ENDPOINT, value: {{ . | quote }}}
- {name: KSHARE_TRACE_RATIO, value: {{ $.root.Values.tracing.ratio | quote }}}
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

{{/* How long 95 of 100 state writes take, as leaders see them; 0 while there are none. */}}
{{- define "kshare.stateWriteSecondsQuery" -}}
histogram_quantile(0.95, sum by (le) (rate(kshare_rpc_client_call_duration_seconds_bucket{namespace={{ .Release.Namespace | quote }},release={{ .Release.Name | quote }},service="ShareCoordinator",method="WriteShareGroupState"}[2m]))) > 0 or vector(0)
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

{{/* What a gateway's process is told of its listeners with TLS. */}}
{{- define "kshare.listeners" -}}
{{ if .Values.tls.plaintext }}PLAINTEXT://0.0.0.0:9092,{{ end }}SSL://0.0.0.0:9093
{{- end -}}

{{/* What clients are told; a dict with root and sslAddress, where those of the SSL listener connect. */}}
{{- define "kshare.advertisedListeners" -}}
{{ if .root.Values.tls.plaintext }}PLAINTEXT://$(POD_IP):9092,{{ end }}SSL://{{ .sslAddress }}
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
How many pods a workload has; a dict with root, kind, name, values and isScaled. What an autoscaler scales keeps the number
that it has: left out, an upgrade that switches the autoscaler on would take the field away, and Kubernetes would make it 1.
*/}}
{{- define "kshare.replicas" -}}
{{- if not .isScaled -}}
replicas: {{ .values.replicas }}
{{- else -}}
{{- with lookup "apps/v1" .kind .root.Release.Namespace .name -}}
replicas: {{ .spec.replicas }}
{{- end -}}
{{- end -}}
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
spec:
  {{- if not $isDisposable }}
  serviceName: {{ $name }}
  {{- end }}
  {{- with include "kshare.replicas" (dict "root" .root "kind" $kind "name" $name "values" .values "isScaled" .isScaled) }}
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
        {{- include "kshare.labels" . | nindent 8 }}
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
            {{- include "kshare.securityContext" . | nindent 12 }}
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
  volumeClaimTemplates:
    - metadata:
        name: data
        labels:
          {{- include "kshare.selector" . | nindent 10 }}
      spec:
        accessModes: [ReadWriteOnce]
        {{- with .values.storage.className }}
        storageClassName: {{ . }}
        {{- end }}
        resources:
          requests: {storage: {{ .values.storage.size }}}
  {{- end }}
{{- end -}}
