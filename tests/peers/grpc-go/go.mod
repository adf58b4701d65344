module cri-resmgr/tests/peers/grpc-go

go 1.26.0

tool (
	cri-resmgr/tests/peers/grpc-go/caller
	cri-resmgr/tests/peers/grpc-go/passthrough
	cri-resmgr/tests/peers/grpc-go/runtime
)

require (
	google.golang.org/grpc v1.83.2
	k8s.io/cri-api v0.36.3
)

require (
	golang.org/x/net v0.58.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
	golang.org/x/text v0.41.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260526163538-3dc84a4a5aaa // indirect
	google.golang.org/protobuf v1.36.12-0.20260120151049-f2248ac996af // indirect
)
