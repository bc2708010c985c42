package traffic

import (
	"bytes"
	"cascadekv/internal/block"
	"encoding/hex"
	"errors"
	"reflect"
	"testing"
)

// golden is a command and its bytes, which docs/protocol.md has too.
var golden = Command{Kind: Put, Chained: true, At: 1_800_000_000_123, Sender: Sender{4711, 7}, Parent: 5, Namespace: "ns",
	Keys: block.Fingerprints("ns", "a", "b")}

const goldenBytes = "0301" + "7b505c18a3010000" + "6712000000000000" + "0700000000000000" + "0500000000000000" + "0200" + "6e73" +
	"2b2dfe27cf4540af" + "6b5e65997eab3655"

func TestGoldenBytes(t *testing.T) {
	want, err := hex.DecodeString(goldenBytes)
	got := Append(nil, &golden)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%x, want %x, %v", got, want, err)
	}
	if c, err := Parse(want); err != nil || !reflect.DeepEqual(c, golden) {
		t.Errorf("%+v, %v", c, err)
	}
}

// FuzzParse: what is a command is written back as it was, and nothing else is one.
func FuzzParse(f *testing.F) {
	whole := Append(nil, &golden)
	f.Add(whole)
	f.Add(whole[:len(whole)-1])
	f.Add(whole[:headBytes])
	f.Add(Append(nil, &Command{Kind: Looked}))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := Parse(b)
		if err != nil {
			if !errors.Is(err, ErrCommand) {
				t.Error(err)
			}
			return
		}
		if again := Append(nil, &c); !bytes.Equal(again, b) {
			t.Errorf("%x became %x", b, again)
		}
	})
}
