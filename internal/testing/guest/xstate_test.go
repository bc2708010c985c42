package guest

import (
	"bytes"
	"testing"
)

// TestFitXstate: the size is replaced where registers are set, nowhere else, and
// an image that is built otherwise is left alone.
func TestFitXstate(t *testing.T) {
	set := bytes.Clone(setXstate)
	get := append(bytes.Clone(set[:10]), 0x04, 0x42, 0, 0)
	kernel := bytes.Join([][]byte{get, set, get, set}, []byte("between"))
	got, err := fitXstate(kernel, 11008)
	if err != nil {
		t.Fatal(err)
	}
	fits := append(append(bytes.Clone(set[:5]), 0x00, 0x2b, 0, 0), set[9:]...)
	if want := bytes.Join([][]byte{get, fits, get, fits}, []byte("between")); !bytes.Equal(got, want) {
		t.Errorf("got  %x\nwant %x", got, want)
	}
	for _, other := range [][]byte{nil, get, set, bytes.Repeat(set, 3)} {
		if got, err := fitXstate(other, 11008); err == nil {
			t.Errorf("%x was taken for a guest's kernel and became %x", other, got)
		}
	}
}
