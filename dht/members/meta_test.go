package members

import (
	"encoding/hex"
	"errors"
	"runtime"
	"strings"
	"testing"
)

var sample = meta{rank: 3, incarnation: 1763700000, nonce: 0xdeadbeef, placement: 1, addr: "10.0.0.3:7400", host: "nid003"}

func encoded(t testing.TB, m meta) []byte {
	t.Helper()
	b, err := m.encode()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestMetaGolden pins the bytes of docs/protocol.md.
func TestMetaGolden(t *testing.T) {
	want := "98" + "01" + "03" + "ce691fed20" + "cedeadbeef" + "01" + "c2" + "ad" + hex.EncodeToString([]byte("10.0.0.3:7400")) + "a6" + hex.EncodeToString([]byte("nid003"))
	if got := hex.EncodeToString(encoded(t, sample)); got != want {
		t.Errorf("%s, golden %s", got, want)
	}
	if name := sample.name(); name != "3.1763700000.deadbeef" {
		t.Errorf("name %s", name)
	}
}

func TestMetaBounds(t *testing.T) {
	full := meta{maxRank - 1, 1<<64 - 1, 1<<32 - 1, 1<<32 - 1, true, strings.Repeat("a", maxAddr), strings.Repeat("h", maxHost)}
	b := encoded(t, full)
	if len(b) > maxMeta {
		t.Errorf("%d bytes", len(b))
	}
	if back, err := decodeMeta(b); err != nil || back != full {
		t.Errorf("%+v, %v", back, err)
	}
	for what, m := range map[string]meta{
		"rank":  {rank: maxRank},
		"addr":  {addr: strings.Repeat("a", maxAddr+1)},
		"host":  {host: strings.Repeat("h", maxHost+1)},
		"line":  {host: "a\nb"},
		"bytes": {addr: "\xff"},
	} {
		if _, err := m.encode(); err == nil {
			t.Errorf("%s: encoded", what)
		}
	}
}

func TestMetaJunk(t *testing.T) {
	good := encoded(t, sample)
	junk := map[string][]byte{
		"nothing":       {},
		"short":         good[:len(good)-1],
		"longer":        append(append([]byte{}, good...), 0),
		"other version": append([]byte{0x98, 2}, good[2:]...),
		"long number":   append([]byte{0x98, 0xcc, 1}, good[2:]...),
		"negative":      append([]byte{0x98, 1, 0xff}, good[3:]...),
		"fewer fields":  append([]byte{0x97}, good[1:]...),
		"huge text":     {0x98, 1, 3, 1, 1, 1, 0xc2, 0xdb, 0xff, 0xff, 0xff, 0xff},
		"nil":           {0xc0},
	}
	for what, b := range junk {
		if m, err := decodeMeta(b); !errors.Is(err, errMeta) {
			t.Errorf("%s: %+v, %v", what, m, err)
		}
	}
}

// TestMetaJunkKeepsNoMemory: a length that nothing follows costs memory for a moment
// only, however often it comes.
func TestMetaJunkKeepsNoMemory(t *testing.T) {
	live := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := live()
	for range 20 {
		if _, err := decodeMeta([]byte{0x98, 1, 3, 9, 1, 2, 0xc2, 0xdb, 0xff, 0xff, 0xff, 0xf0, 'a'}); !errors.Is(err, errMeta) {
			t.Fatal(err)
		}
	}
	if grown := live() - before; grown > 8<<20 {
		t.Errorf("%d bytes are kept", grown)
	}
}

func FuzzMeta(f *testing.F) {
	f.Add(encoded(f, sample))
	f.Add(encoded(f, meta{leaving: true}))
	f.Add([]byte{0x98, 1, 3, 1, 1, 1, 0xc2, 0xdb, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeMeta(b)
		if err != nil {
			if !errors.Is(err, errMeta) {
				t.Errorf("%x: %v", b, err)
			}
			return
		}
		if string(encoded(t, m)) != string(b) {
			t.Errorf("%x is taken for %+v", b, m)
		}
	})
}
