package block

import (
	"errors"
	"math"
	"strings"
	"testing"
)

// The digest of "abc" is an example of FIPS 180-2.
const abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"

func TestSumIsAPrefixOfTheDigest(t *testing.T) {
	for name, c := range map[string]struct {
		bits  int
		parts []string
		want  string
	}{
		"128":                  {Bits128, []string{"abc"}, abc[:32]},
		"256":                  {Bits256, []string{"abc"}, abc},
		"other width":          {7, []string{"abc"}, abc[:32]},
		"key then value":       {Bits256, []string{"a", "bc"}, abc},
		"parts do not matter":  {Bits256, []string{"", "ab", "", "c"}, abc},
		"order of the two":     {Bits256, []string{"bc", "a"}, "96e31900cc68fc888c1780af22244926f630f384f956d03c71d042eedea86127"},
		"nothing is something": {Bits128, nil, "e3b0c44298fc1c149afbf4c8996fb924"},
	} {
		var parts [][]byte
		for _, p := range c.parts {
			parts = append(parts, []byte(p))
		}
		if got := Sum(c.bits, parts...); got.String() != c.want || got.IsZero() || got.IsProvisional() {
			t.Errorf("%s: %v, want %s", name, got, c.want)
		}
	}
}

func TestHasherStartsAgain(t *testing.T) {
	h := NewHasher(Bits256)
	h.Write([]byte("something else"))
	h.Reset()
	h.Write([]byte("ab"))
	_ = h.ID() // asking does not end the block
	h.Write([]byte("c"))
	if got := h.ID().String(); got != abc {
		t.Errorf("%s, want %s", got, abc)
	}
}

func TestProvisional(t *testing.T) {
	for _, n := range []uint64{1, 255, 1 << 40, math.MaxUint64} {
		id := Provisional(n)
		if !id.IsProvisional() || id.IsZero() || ProvisionalNumber(id) != n {
			t.Errorf("Provisional(%d) = %x, number %d", n, id, ProvisionalNumber(id))
		}
		if _, err := ParseID(id.String()); !errors.Is(err, ErrBadID) {
			t.Errorf("ParseID(%q): error %v, want ErrBadID", id, err)
		}
	}
	for name, id := range map[string]ID{"zero": {}, "digest": Sum(Bits128), "wide": Sum(Bits256)} {
		if id.IsProvisional() || ProvisionalNumber(id) != 0 {
			t.Errorf("%s id is provisional", name)
		}
	}
}

func TestParseIDRefuses(t *testing.T) {
	for name, s := range map[string]string{
		"empty": "", "short": abc[:31], "between": abc[:40], "long": abc + "00", "no hex": strings.Repeat("g", 32),
		"zero": strings.Repeat("0", 32), "wide zero": strings.Repeat("0", 64), "provisional": strings.Repeat("0", 63) + "1",
	} {
		if id, err := ParseID(s); !errors.Is(err, ErrBadID) || !id.IsZero() {
			t.Errorf("%s: %v, error %v", name, id, err)
		}
	}
}

func FuzzParseID(f *testing.F) {
	f.Add(abc)
	f.Add(abc[:32])
	f.Add("pending-7")
	f.Add(strings.Repeat("0", 64))
	f.Fuzz(func(t *testing.T, s string) {
		id, err := ParseID(s)
		if err != nil {
			if !errors.Is(err, ErrBadID) || !id.IsZero() {
				t.Fatalf("%q: %v, error %v", s, id, err)
			}
			return
		}
		if id.IsProvisional() || id.IsZero() {
			t.Fatalf("%q is no digest but parses to %v", s, id)
		}
		again, err := ParseID(id.String())
		if err != nil || again != id {
			t.Fatalf("%q: %v reads back as %v, %v", s, id, again, err)
		}
	})
}

func TestCRC(t *testing.T) {
	// The check value of CRC-32C.
	if got := CRC([]byte("123456789")); got != 0xe3069283 {
		t.Errorf("CRC = %#x", got)
	}
	if got := ExtendCRC(CRC([]byte("1234")), []byte("56789")); got != 0xe3069283 {
		t.Errorf("extended CRC = %#x", got)
	}
	if CRC(nil) != 0 {
		t.Error("the CRC of nothing is not 0")
	}
}
