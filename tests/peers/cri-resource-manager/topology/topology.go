// Package topology stands in for a module of cri-resource-manager's repository that no module proxy has: the release
// takes it from a folder. Devices and mounts have no hints here, which spares the program a look into sysfs for each.
package topology

import "errors"

// ProviderKubelet names the hint that is made of a cpuset of kubelet's.
const ProviderKubelet = "kubelet"

// Hint is what is near to a device.
type Hint struct {
	Provider string
	CPUs     string
	NUMAs    string
	Sockets  string
}

// Hints are hints by their provider.
type Hints map[string]Hint

// SetSysRoot is told where sysfs is, which nothing here reads.
func SetSysRoot(string) {}

// FindSysFsDevice finds no device.
func FindSysFsDevice(string) (string, error) {
	return "", errors.New("no device is looked for")
}

// NewTopologyHints has none.
func NewTopologyHints(string) (Hints, error) {
	return Hints{}, nil
}

// MergeTopologyHints adds the second hints to the first, which win, and returns these.
func MergeTopologyHints(hints, more Hints) Hints {
	if hints == nil {
		hints = Hints{}
	}
	for provider, hint := range more {
		if _, has := hints[provider]; !has {
			hints[provider] = hint
		}
	}
	return hints
}

// String shows a hint in a log line.
func (h *Hint) String() string {
	return "<hints " + h.CPUs + " " + h.NUMAs + " " + h.Sockets + " (from " + h.Provider + ")>"
}
