package e2e

import (
	"syscall"
	"testing"

	"cascadekv/internal/testing/noise"
)

// TestCodec stores a block that halves under a codec and one of noise with
// lustre.codec at auto, and reads them with a rank that leaves it at none.
func TestCodec(t *testing.T) {
	p := newPlace(t, "64MiB").withLustre()
	whole := noise.Bytes(1, 1<<20)
	halves := make([]byte, 1<<20)
	for i := range halves {
		halves[i] = 0x3f
		if i%2 == 0 {
			halves[i] = whole[i]
		}
	}
	r := start(t, p, "--lustre-codec", "auto")
	c := r.dial(t)
	values := map[string]string{"halves": string(halves), "noise": string(whole)}
	for key, value := range values {
		if _, err := c.Do("CASCADE.PUT", key, value, "NS", "of "+key); err != nil {
			t.Fatal(err)
		}
	}
	r.signal(t, syscall.SIGTERM)
	wantStatus(t, r.status(t), 0, r.stderr)
	p.wantNoArena(t)

	after := start(t, p)
	c = after.dial(t)
	for key, value := range values {
		if got, err := c.Do("CASCADE.GET", "NS", "of "+key, key); err != nil || got.Text() != value {
			t.Errorf("%s: the same bytes: %v, error %v", key, got.Text() == value, err)
		}
	}
	s := after.stats(t)
	for _, tier := range s.Tiers {
		if tier.Name != "lustre" {
			continue
		}
		e := tier.Encoded
		if e == nil || tier.Usage.Payload != 2<<20 || e.Stored < 3<<19 || e.Stored > 3<<19+64<<10 {
			t.Fatalf("%+v, encoded %+v", tier.Usage, e)
		}
		var decoded uint64
		for _, c := range e.Codecs {
			decoded += c.Decoded
		}
		if decoded != 1 {
			t.Errorf("%+v", e.Codecs)
		}
		return
	}
	t.Errorf("no lustre tier in %+v", s.Tiers)
}
