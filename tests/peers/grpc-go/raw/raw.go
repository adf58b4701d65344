// Package raw is what the programs beside it share: messages as bytes, and sockets.
package raw

import (
	"fmt"
	"net"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
)

// MaxMessage is what kubelet allows a message to have.
const MaxMessage = 16 << 20

// Message is a message as it came from the wire.
type Message struct{ Data mem.BufferSlice }

// Codec passes messages on as they are.
type Codec struct{}

// Name is that of the messages' real encoding, which servers look at.
func (Codec) Name() string { return "proto" }

// Marshal gives the message away.
func (Codec) Marshal(value any) (mem.BufferSlice, error) {
	message, is := value.(*Message)
	if !is {
		return nil, fmt.Errorf("%T is no message", value)
	}
	return message.Data, nil
}

// Unmarshal keeps the message.
func (Codec) Unmarshal(data mem.BufferSlice, value any) error {
	message, is := value.(*Message)
	if !is {
		return fmt.Errorf("%T is no message", value)
	}
	data.Ref()
	message.Data = data
	return nil
}

// Dial connects to a socket with messages as bytes.
func Dial(path string) (*grpc.ClientConn, error) {
	return grpc.NewClient(
		"unix:"+path,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(Codec{}), grpc.MaxCallRecvMsgSize(MaxMessage)),
	)
}

// Serve says "ready" and serves a socket until the process is ended.
func Serve(server *grpc.Server, path string) {
	listener, err := net.Listen("unix", path)
	if err == nil {
		fmt.Println("ready")
		err = server.Serve(listener)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
