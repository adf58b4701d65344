// A plugin with NRI's own stub, which does what pods tell it by annotations, or its configuration for all of them.
//
// The annotation NAME.plugin.example/create.CONTAINER has a CreateContainerResponse as JSON, NAME.plugin.example/update.CONTAINER an
// UpdateContainerResponse, NAME.plugin.example/started.CONTAINER an UpdateContainersRequest that the plugin makes of its own once that
// container runs. A configuration is a CreateContainerResponse. {id} is the id of the container that the event is about,
// {id NAME} that of another one of the pod. In place of JSON: "hang", "die", or "fail WORDS", an error.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"strings"
	"sync"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

type plugin struct {
	stub   stub.Stub
	name   string
	config string
	lock   sync.Mutex
	ids    []string
}

func (p *plugin) Configure(_ context.Context, config, runtime, version string) (stub.EventMask, error) {
	p.config = config
	log.Printf("configured by %s %s: %q", runtime, version, config)
	return 0, nil
}

func (p *plugin) Synchronize(_ context.Context, _ []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	for _, container := range containers {
		p.remember(container)
	}
	fmt.Println("synchronized")
	return nil, nil
}

func (p *plugin) CreateContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	p.remember(container)
	reply := &api.CreateContainerResponse{}
	told := p.told(pod, "create", container)
	if told == "" {
		told = p.config
	}
	err := p.obey(told, reply)
	return reply.Adjust, reply.Update, err
}

func (p *plugin) UpdateContainer(_ context.Context, pod *api.PodSandbox, container *api.Container, _ *api.LinuxResources) ([]*api.ContainerUpdate, error) {
	reply := &api.UpdateContainerResponse{}
	err := p.obey(p.told(pod, "update", container), reply)
	return reply.Update, err
}

func (p *plugin) PostStartContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) error {
	request := &api.UpdateContainersRequest{}
	err := p.obey(p.told(pod, "started", container), request)
	if len(request.Update) > 0 {
		go func() {
			failed, err := p.stub.UpdateContainers(request.Update)
			fmt.Printf("updated: %d failed, %v\n", len(failed), err)
		}()
	}
	return err
}

func (p *plugin) remember(container *api.Container) {
	p.lock.Lock()
	defer p.lock.Unlock()
	p.ids = append(p.ids, fmt.Sprintf("{id %s}", container.Name), container.Id)
}

// What the pod tells this plugin about a container, if anything.
func (p *plugin) told(pod *api.PodSandbox, event string, container *api.Container) string {
	p.lock.Lock()
	defer p.lock.Unlock()
	text := pod.Annotations[fmt.Sprintf("%s.plugin.example/%s.%s", p.name, event, container.Name)]
	return strings.NewReplacer(append([]string{"{id}", container.Id}, p.ids...)...).Replace(text)
}

func (p *plugin) obey(told string, reply proto.Message) error {
	word, rest, _ := strings.Cut(told, " ")
	switch word {
	case "":
		return nil
	case "hang":
		select {}
	case "die":
		os.Exit(3)
	case "fail":
		return errors.New(rest)
	}
	return protojson.Unmarshal([]byte(told), reply)
}

func main() {
	name := flag.String("name", os.Getenv("NRI_PLUGIN_NAME"), "of the plugin")
	index := flag.String("index", "", "two digits")
	socket := flag.String("socket", "", "of NRI")
	flag.Parse()
	p := &plugin{name: *name}
	options := []stub.Option{stub.WithOnClose(func() { os.Exit(0) })}
	if *socket != "" {
		options = append(options, stub.WithSocketPath(*socket), stub.WithPluginName(*name), stub.WithPluginIdx(*index))
	}
	var err error
	if p.stub, err = stub.New(p, options...); err == nil {
		err = p.stub.Run(context.Background())
	}
	if err != nil {
		log.Fatal(err)
	}
}
