// The schemata that goresctrl gives the classes of configurations, each on a described machine.
//
// Every argument is a folder: config.json has the configuration, mounts a line of /proc/mounts that names the resctrl beside
// it, which is a described tree. A line of JSON a folder tells the schemata by group ("" is the root's), or the error.
//
// A folder with a blockio.json instead has classes of block I/O: they are told as the runtime is given them.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	_ "unsafe" // for the path of mounts, which the library sets in its tests only

	"github.com/intel/goresctrl/pkg/blockio"
	"github.com/intel/goresctrl/pkg/rdt"
	oci "github.com/opencontainers/runtime-spec/specs-go"
)

//go:linkname mountInfoPath github.com/intel/goresctrl/pkg/rdt.mountInfoPath
var mountInfoPath string

const prefix = "cri-resmgr."

type answer struct {
	Error    string            `json:"error,omitempty"`
	Schemata map[string]string `json:"schemata,omitempty"`

	BlockIO map[string]*oci.LinuxBlockIO `json:"blockio,omitempty"`
}

func classes(file string) answer {
	if err := blockio.SetConfigFromFile(file, false); err != nil {
		return answer{Error: err.Error()}
	}
	found := answer{BlockIO: map[string]*oci.LinuxBlockIO{}}
	for _, name := range blockio.GetClasses() {
		parameters, err := blockio.OciLinuxBlockIO(name)
		if err != nil {
			return answer{Error: err.Error()}
		}
		found.BlockIO[name] = parameters
	}
	return found
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

func configured(folder string) (found answer) {
	defer func() {
		if panicked := recover(); panicked != nil {
			found = answer{Error: fmt.Sprintf("panic: %v", panicked)}
		}
	}()
	if file := filepath.Join(folder, "blockio.json"); exists(file) {
		return classes(file)
	}
	mountInfoPath = filepath.Join(folder, "mounts")
	if err := rdt.Initialize(prefix); err != nil {
		return answer{Error: err.Error()}
	}
	if err := rdt.SetConfigFromFile(filepath.Join(folder, "config.json"), true); err != nil {
		return answer{Error: err.Error()}
	}
	tree := filepath.Join(folder, "resctrl")
	found = answer{Schemata: map[string]string{}}
	written, err := filepath.Glob(filepath.Join(tree, prefix+"*", "schemata"))
	if err != nil {
		return answer{Error: err.Error()}
	}
	for _, path := range append(written, filepath.Join(tree, "schemata")) {
		text, err := os.ReadFile(path)
		if err != nil {
			return answer{Error: err.Error()}
		}
		name := filepath.Base(filepath.Dir(path))
		if filepath.Dir(path) == tree {
			name = ""
		}
		found.Schemata[name] = string(text)
	}
	return found
}

func main() {
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	slog.SetDefault(quiet)
	blockio.SetLogger(quiet)
	for _, folder := range os.Args[1:] {
		line, err := json.Marshal(configured(folder))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(string(line))
	}
}
