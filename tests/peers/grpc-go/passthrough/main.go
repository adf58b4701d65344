// passthrough RUNTIME SOCKET: a plain relay with grpc-go, which passes every call on as bytes and reads none.
package main

import (
	"fmt"
	"io"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"cri-resmgr/tests/peers/grpc-go/raw"
)

var both = &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}

func main() {
	runtime, err := raw.Dial(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	relay := func(_ any, client grpc.ServerStream) error { return pass(runtime, client) }
	raw.Serve(grpc.NewServer(
		grpc.ForceServerCodecV2(raw.Codec{}),
		grpc.UnknownServiceHandler(relay),
		grpc.MaxRecvMsgSize(raw.MaxMessage),
	), os.Args[2])
}

// pass is one call: requests in a goroutine of their own, replies here.
func pass(runtime *grpc.ClientConn, client grpc.ServerStream) error {
	method, has := grpc.MethodFromServerStream(client)
	if !has {
		return status.Error(codes.Internal, "a call without a method")
	}
	context := client.Context()
	if sent, has := metadata.FromIncomingContext(context); has {
		context = metadata.NewOutgoingContext(context, sent)
	}
	call, err := runtime.NewStream(context, both, method)
	if err != nil {
		return err
	}
	go func() {
		for {
			var request raw.Message
			if client.RecvMsg(&request) != nil || call.SendMsg(&request) != nil {
				_ = call.CloseSend()
				return
			}
		}
	}()
	for isFirst := true; ; isFirst = false {
		var reply raw.Message
		err := call.RecvMsg(&reply)
		if isFirst {
			if header, failed := call.Header(); failed == nil {
				_ = client.SendHeader(header)
			}
		}
		if err != nil {
			client.SetTrailer(call.Trailer())
			if err == io.EOF {
				return nil
			}
			return err
		}
		if err := client.SendMsg(&reply); err != nil {
			return err
		}
	}
}
