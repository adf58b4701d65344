// runtime SOCKET: a runtime with grpc-go and Kubernetes' own messages that runs nothing and keeps what it is told.
package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"cri-resmgr/tests/peers/grpc-go/raw"
)

type runtime struct {
	cri.UnimplementedRuntimeServiceServer
	cri.UnimplementedImageServiceServer
	lock       sync.Mutex
	made       int
	order      []string
	pods       map[string]*cri.PodSandboxStatus
	containers map[string]*cri.ContainerStatus
	podOf      map[string]string
}

func main() {
	server := grpc.NewServer(grpc.MaxRecvMsgSize(raw.MaxMessage), grpc.MaxSendMsgSize(raw.MaxMessage))
	it := &runtime{
		pods:       map[string]*cri.PodSandboxStatus{},
		containers: map[string]*cri.ContainerStatus{},
		podOf:      map[string]string{},
	}
	cri.RegisterRuntimeServiceServer(server, it)
	cri.RegisterImageServiceServer(server, it)
	raw.Serve(server, os.Args[1])
}

func (r *runtime) newID() string {
	r.made++
	id := fmt.Sprintf("%064x", r.made)
	r.order = append(r.order, id)
	return id
}

func (r *runtime) forget(id string) {
	for at, other := range r.order {
		if other == id {
			r.order = append(r.order[:at], r.order[at+1:]...)
			return
		}
	}
}

func (r *runtime) Version(context.Context, *cri.VersionRequest) (*cri.VersionResponse, error) {
	return &cri.VersionResponse{
		Version: "0.1.0", RuntimeName: "containerd", RuntimeVersion: "v2.0.0", RuntimeApiVersion: "v1",
	}, nil
}

func (r *runtime) Status(context.Context, *cri.StatusRequest) (*cri.StatusResponse, error) {
	conditions := []*cri.RuntimeCondition{
		{Type: "RuntimeReady", Status: true}, {Type: "NetworkReady", Status: true},
	}
	return &cri.StatusResponse{Status: &cri.RuntimeStatus{Conditions: conditions}}, nil
}

// GetContainerEvents has none: all that happens here is asked for.
func (r *runtime) GetContainerEvents(_ *cri.GetEventsRequest, stream grpc.ServerStreamingServer[cri.ContainerEventResponse]) error {
	<-stream.Context().Done()
	return nil
}

func (r *runtime) ListImages(context.Context, *cri.ListImagesRequest) (*cri.ListImagesResponse, error) {
	return &cri.ListImagesResponse{}, nil
}

func (r *runtime) RunPodSandbox(_ context.Context, asked *cri.RunPodSandboxRequest) (*cri.RunPodSandboxResponse, error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	config := asked.GetConfig()
	id := r.newID()
	r.pods[id] = &cri.PodSandboxStatus{
		Id: id, Metadata: config.GetMetadata(), State: cri.PodSandboxState_SANDBOX_READY, CreatedAt: time.Now().UnixNano(),
		Labels: config.GetLabels(), Annotations: config.GetAnnotations(), RuntimeHandler: asked.GetRuntimeHandler(),
	}
	return &cri.RunPodSandboxResponse{PodSandboxId: id}, nil
}

func (r *runtime) StopPodSandbox(_ context.Context, asked *cri.StopPodSandboxRequest) (*cri.StopPodSandboxResponse, error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	if pod := r.pods[asked.GetPodSandboxId()]; pod != nil {
		pod.State = cri.PodSandboxState_SANDBOX_NOTREADY
	}
	return &cri.StopPodSandboxResponse{}, nil
}

func (r *runtime) RemovePodSandbox(_ context.Context, asked *cri.RemovePodSandboxRequest) (*cri.RemovePodSandboxResponse, error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	delete(r.pods, asked.GetPodSandboxId())
	r.forget(asked.GetPodSandboxId())
	return &cri.RemovePodSandboxResponse{}, nil
}

func (r *runtime) PodSandboxStatus(_ context.Context, asked *cri.PodSandboxStatusRequest) (*cri.PodSandboxStatusResponse, error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	pod := r.pods[asked.GetPodSandboxId()]
	if pod == nil {
		return nil, status.Error(codes.NotFound, "no such pod")
	}
	return &cri.PodSandboxStatusResponse{Status: pod}, nil
}

func (r *runtime) ListPodSandbox(context.Context, *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse, error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	listed := &cri.ListPodSandboxResponse{}
	for _, id := range r.order {
		if pod := r.pods[id]; pod != nil {
			listed.Items = append(listed.Items, &cri.PodSandbox{
				Id: id, Metadata: pod.Metadata, State: pod.State, CreatedAt: pod.CreatedAt,
				Labels: pod.Labels, Annotations: pod.Annotations, RuntimeHandler: pod.RuntimeHandler,
			})
		}
	}
	return listed, nil
}

func (r *runtime) CreateContainer(_ context.Context, asked *cri.CreateContainerRequest) (*cri.CreateContainerResponse, error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	config := asked.GetConfig()
	id := r.newID()
	r.containers[id] = &cri.ContainerStatus{
		Id: id, Metadata: config.GetMetadata(), State: cri.ContainerState_CONTAINER_CREATED, CreatedAt: time.Now().UnixNano(),
		Image: config.GetImage(), ImageRef: "sha256:1", Labels: config.GetLabels(), Annotations: config.GetAnnotations(),
		Resources: &cri.ContainerResources{Linux: config.GetLinux().GetResources()},
	}
	r.podOf[id] = asked.GetPodSandboxId()
	return &cri.CreateContainerResponse{ContainerId: id}, nil
}

func (r *runtime) found(id string) (*cri.ContainerStatus, error) {
	if container := r.containers[id]; container != nil {
		return container, nil
	}
	return nil, status.Error(codes.NotFound, "no such container")
}

func (r *runtime) StartContainer(_ context.Context, asked *cri.StartContainerRequest) (*cri.StartContainerResponse, error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	container, err := r.found(asked.GetContainerId())
	if err != nil {
		return nil, err
	}
	container.State, container.StartedAt = cri.ContainerState_CONTAINER_RUNNING, time.Now().UnixNano()
	return &cri.StartContainerResponse{}, nil
}

func (r *runtime) StopContainer(_ context.Context, asked *cri.StopContainerRequest) (*cri.StopContainerResponse, error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	container, err := r.found(asked.GetContainerId())
	if err != nil {
		return nil, err
	}
	container.State, container.FinishedAt = cri.ContainerState_CONTAINER_EXITED, time.Now().UnixNano()
	return &cri.StopContainerResponse{}, nil
}

func (r *runtime) RemoveContainer(_ context.Context, asked *cri.RemoveContainerRequest) (*cri.RemoveContainerResponse, error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	delete(r.containers, asked.GetContainerId())
	delete(r.podOf, asked.GetContainerId())
	r.forget(asked.GetContainerId())
	return &cri.RemoveContainerResponse{}, nil
}

func (r *runtime) UpdateContainerResources(_ context.Context, asked *cri.UpdateContainerResourcesRequest) (*cri.UpdateContainerResourcesResponse, error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	container, err := r.found(asked.GetContainerId())
	if err != nil {
		return nil, err
	}
	container.Resources = &cri.ContainerResources{Linux: asked.GetLinux()}
	return &cri.UpdateContainerResourcesResponse{}, nil
}

func (r *runtime) ContainerStatus(_ context.Context, asked *cri.ContainerStatusRequest) (*cri.ContainerStatusResponse, error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	container, err := r.found(asked.GetContainerId())
	if err != nil {
		return nil, err
	}
	return &cri.ContainerStatusResponse{Status: container}, nil
}

func (r *runtime) ListContainers(context.Context, *cri.ListContainersRequest) (*cri.ListContainersResponse, error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	listed := &cri.ListContainersResponse{}
	for _, id := range r.order {
		if container := r.containers[id]; container != nil {
			listed.Containers = append(listed.Containers, &cri.Container{
				Id: id, PodSandboxId: r.podOf[id], Metadata: container.Metadata, Image: container.Image,
				ImageRef: container.ImageRef, State: container.State, CreatedAt: container.CreatedAt,
				Labels: container.Labels, Annotations: container.Annotations,
			})
		}
	}
	return listed, nil
}
