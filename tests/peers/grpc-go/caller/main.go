// caller: a client with grpc-go that makes the calls of each line of its input, one after the other, and times them.
//
// A line in:  {"socket": PATH, "method": "/runtime.v1.RuntimeService/Version", "requests": [BASE64...], "replies": true}
// A line out: {"seconds": [...], "replies": [BASE64...], "error": ""}
package main

import (
	"context"
	"encoding/json"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	"cri-resmgr/tests/peers/grpc-go/raw"
)

// No call of a bench takes so long, unless its other end has gone.
const timeout = time.Minute

type turn struct {
	Socket   string   `json:"socket"`
	Method   string   `json:"method"`
	Requests [][]byte `json:"requests"`
	Replies  bool     `json:"replies"`
}

type outcome struct {
	Seconds []float64 `json:"seconds"`
	Replies [][]byte  `json:"replies"`
	Error   string    `json:"error"`
}

func main() {
	connections := map[string]*grpc.ClientConn{}
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var asked turn
		if in.Decode(&asked) != nil {
			return
		}
		var done outcome
		connection, err := connections[asked.Socket], error(nil)
		if connection == nil {
			connection, err = raw.Dial(asked.Socket)
			connections[asked.Socket] = connection
		}
		if err == nil {
			err = calls(connection, &asked, &done)
		}
		if err != nil {
			done.Error = err.Error()
		}
		_ = out.Encode(done)
	}
}

func calls(connection *grpc.ClientConn, asked *turn, done *outcome) error {
	for _, bytes := range asked.Requests {
		request := raw.Message{Data: mem.BufferSlice{mem.SliceBuffer(bytes)}}
		var reply raw.Message
		limited, end := context.WithTimeout(context.Background(), timeout)
		started := time.Now()
		err := connection.Invoke(limited, asked.Method, &request, &reply)
		done.Seconds = append(done.Seconds, time.Since(started).Seconds())
		end()
		if err != nil {
			return err
		}
		if asked.Replies {
			done.Replies = append(done.Replies, reply.Data.Materialize())
		}
		reply.Data.Free()
	}
	return nil
}
