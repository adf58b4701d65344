module github.com/intel/cri-resource-manager/pkg/topology

go 1.24
