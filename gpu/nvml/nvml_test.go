package nvml

import (
	"errors"
	"strings"
	"testing"
)

func TestHealth(t *testing.T) {
	for want, h := range map[string]Health{
		"":                   {Uncorrected: -1},
		"uncorrected errors": {Uncorrected: 3, Pending: true},
		"next reset":         {Pending: true},
		"have the GPU":       {Uncorrected: 3, Failed: true},
	} {
		if got := h.Problem(); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%+v: %q, want %q", h, got, want)
		}
	}
}

func TestErrorText(t *testing.T) {
	err := error(&Error{Call: "nvmlInit", Code: DriverNotLoaded})
	if !errors.Is(err, DriverNotLoaded) || err.Error() != "nvmlInit: the driver is not loaded (9): load the kernel's module: modprobe nvidia" {
		t.Errorf("%v", err)
	}
	if got := (&Error{Call: "nvmlX", About: "GPU 1", Code: 77}).Error(); got != "nvmlX of GPU 1: result 77 (77)" {
		t.Error(got)
	}
}

// TestMachine asks the machine, whatever the build.
func TestMachine(t *testing.T) {
	l, err := Open()
	if errors.Is(err, ErrNoLibrary) {
		t.Skipf("a GPU's driver, and cgo, are missing: run this with both: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	gpus, err := l.GPUs()
	if err != nil {
		t.Error(err)
	}
	distances, err := l.Distances()
	t.Logf("%+v %v %v", gpus, distances, err)
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}
