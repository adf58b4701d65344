// Package topology stands in for a module of nri-plugins' repository that no module proxy has: the release takes it from
// a folder. Devices and mounts have no hints here, and no container of the tests has any.
package topology

import "errors"

var errNone = errors.New("no device is looked for")

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

// SetLogger is told where to log, which nothing here does.
func SetLogger(any) {}

// FindSysFsDevice finds no device.
func FindSysFsDevice(string) (string, error) { return "", errNone }

// FindGivenSysFsDevice finds no device.
func FindGivenSysFsDevice(string, int64, int64) (string, error) { return "", errNone }

// NewTopologyHints has none.
func NewTopologyHints(string) (Hints, error) { return Hints{}, nil }

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

// ResolvePartialHints would add the CPUs of nodes that hints name without them; there are no hints.
func (Hints) ResolvePartialHints(func(string) string) {}

// String shows a hint in a log line.
func (h *Hint) String() string {
	return "<hints " + h.CPUs + " " + h.NUMAs + " " + h.Sockets + " (from " + h.Provider + ")>"
}
