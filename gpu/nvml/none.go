//go:build !cgo

package nvml

import "fmt"

// Library is the management library. This build has none.
type Library struct{}

// Open returns ErrNoLibrary.
func Open() (*Library, error) {
	return nil, fmt.Errorf("%w: this program was built without cgo: build it with CGO_ENABLED=1, which needs a C compiler", ErrNoLibrary)
}

// GPUs returns none.
func (*Library) GPUs() ([]GPU, error) { return nil, ErrNoLibrary }

// Distances returns none.
func (*Library) Distances() ([][]Distance, error) { return nil, ErrNoLibrary }

// Close does nothing.
func (*Library) Close() error { return nil }
