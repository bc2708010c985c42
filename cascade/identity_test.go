package cascade

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"os"
	"slices"
	"testing"

	"cascadekv/internal/block"
)

//go:generate ../scripts/golden_ids.py testdata/identity.json

// golden is what testdata/identity.json, made by scripts/golden_ids.py, has of blocks.
type golden struct {
	Blocks []struct {
		Key, Value       string // hex, when Seed is 0
		Seed             int
		KeySize          int `json:"key_size"`
		ValueSize        int `json:"value_size"`
		ID128, ID256     string
		keyData, valData []byte
	}
}

func readGolden(t *testing.T) golden {
	t.Helper()
	text, err := os.ReadFile("testdata/identity.json")
	if err != nil {
		t.Fatal(err)
	}
	var g golden
	if err := json.Unmarshal(text, &g); err != nil {
		t.Fatal(err)
	}
	for i := range g.Blocks {
		b := &g.Blocks[i]
		if b.Seed > 0 {
			b.keyData, b.valData = stream(b.Seed, b.KeySize), stream(b.Seed+100, b.ValueSize)
			continue
		}
		for text, data := range map[string]*[]byte{b.Key: &b.keyData, b.Value: &b.valData} {
			if *data, err = hex.DecodeString(text); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(g.Blocks) == 0 {
		t.Fatal("no golden vectors")
	}
	return g
}

// stream makes the bytes that the script of that name makes.
func stream(seed, size int) []byte {
	p := make([]byte, size)
	for i := range p {
		p[i] = byte(seed*131 + i*7 + (i>>8)*13)
	}
	return p
}

func TestGoldenBlockIDs(t *testing.T) {
	for i, b := range readGolden(t).Blocks {
		for bits, want := range map[int]string{block.Bits128: b.ID128, block.Bits256: b.ID256} {
			if got := block.Sum(bits, b.keyData, b.valData).String(); got != want {
				t.Errorf("block %d: %d-bit id %s, want %s", i, bits, got, want)
			}
		}
	}
}

// TestGoldenIDsThroughTheStore puts the vectors and asks what they are called,
// whichever way the bytes came in.
func TestGoldenIDsThroughTheStore(t *testing.T) {
	for name, bits := range map[string]int{"128": block.Bits128, "256": block.Bits256} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 16<<20, false, func(o *Options) { o.IDBits = bits })
			for _, b := range readGolden(t).Blocks {
				want := b.ID128
				if bits == block.Bits256 {
					want = b.ID256
				}
				res, err := r.Put(t.Context(), ns("put "+want), b.keyData, b.valData)
				if err != nil || res.ID.String() != want {
					t.Errorf("Put: id %v, error %v; want %s", res.ID, err, want)
				}
				if err := r.stage(ns("staged "+want), slices.Concat(b.keyData, b.valData)); err != nil {
					t.Error(err)
				}
				r.settled()
				if info, ok := r.Stat(context.Background(), "ns", "staged "+want); !ok || info.ID.String() != want {
					t.Errorf("staged: id %v, found %v; want %s", info.ID, ok, want)
				}
			}
		})
	}
}
