package directory

import (
	"bytes"
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"cascadekv/internal/block"
)

// full is a statement with every field in use.
func full(key string) Statement {
	s := Statement{
		Name: block.Name{
			Namespace: "ns", Key: key, Parent: "parent", Depth: 3, Prefix: true, Bound: true,
			Seq: 1_700_000_000_000_000_001, Expires: time.Unix(0, 1_800_000_000_000_000_000),
		},
		Info:  block.Info{Size: 4 << 20, CRC: 0xe3069283},
		Owner: 1023, Incarnation: 7, Version: 300,
		Memory:  &Memory{Region: 1, Offset: 65536, Generation: 1<<63 + 5},
		Segment: &Segment{Path: "inc7/agg_rank003_000001.bin", Offset: 70000, Stored: 4000, StoredCRC: 0x11223344, Codec: 2},
	}
	for i := range 16 {
		s.Info.ID[i] = byte(i + 1)
	}
	return s
}

func encoded(t testing.TB, s Statement) []byte {
	t.Helper()
	b, err := msgpack.Marshal(&s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func decode(b []byte) (s Statement, err error) {
	err = s.DecodeMsgpack(msgpack.NewDecoder(bytes.NewReader(b)))
	return s, err
}

func decoded(t testing.TB, b []byte) Statement {
	t.Helper()
	s, err := decode(b)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// golden was written by a Python script that puts the bytes together from the
// msgpack specification and docs/protocol.md, without a msgpack library: an
// array of 15, strings with fixstr or str 8 heads, integers in the shortest
// unsigned form, the id as bin 8, nil for what is absent.
var golden = map[string]struct {
	statement Statement
	hex       string
}{
	"full": {full(strings.Repeat("k", 40)), "" +
		"9fa26e73d9286b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6ba670" +
		"6172656e740303cf17979cfe362a0001cf18fae27693b40000c4200102030405060708090a0b0c0d0e0f100000000000" +
		"0000000000000000000000ce00400000cee3069283cd03ff07cd012c9301ce00010000cf800000000000000595bb696e" +
		"63372f6167675f72616e6b3030335f3030303030312e62696ece00011170cd0fa0ce1122334402"},
	"withdrawal": {
		Statement{Name: block.Name{Key: "k"}, Owner: 5, Incarnation: 1, Version: 9}, "9fa0a16ba000000000c00000050109c0c0",
	},
}

func TestGoldenBytes(t *testing.T) {
	for name, g := range golden {
		if got := hex.EncodeToString(encoded(t, g.statement)); got != g.hex {
			t.Errorf("%s: %s\nwant %s", name, got, g.hex)
		}
		raw, err := hex.DecodeString(g.hex)
		if err != nil {
			t.Fatal(err)
		}
		if got := decoded(t, raw); !reflect.DeepEqual(got, g.statement) {
			t.Errorf("%s reads back as %+v", name, got)
		}
	}
}

func TestRefusedStatements(t *testing.T) {
	for name, change := range map[string]func(*Statement){
		"long key":        func(s *Statement) { s.Name.Key = strings.Repeat("k", block.MaxKey+1) },
		"long path":       func(s *Statement) { s.Segment.Path = strings.Repeat("p", block.MaxKey+1) },
		"negative size":   func(s *Statement) { s.Info.Size = -1 },
		"size":            func(s *Statement) { s.Info.Size = block.MaxSize + 1 },
		"copy without id": func(s *Statement) { s.Info.ID = block.ID{} },
		"negative place":  func(s *Statement) { s.Memory.Offset = -1 },
		"negative offset": func(s *Statement) { s.Segment.Offset = -4096 },
		"negative stored": func(s *Statement) { s.Segment.Stored = -1 },
	} {
		s := full("key")
		change(&s)
		if got, err := decode(encoded(t, s)); !errors.Is(err, ErrBadStatement) || got.Has() {
			t.Errorf("%s: error %v", name, err)
		}
	}
	whole := encoded(t, full("key"))
	for n := range whole {
		if _, err := decode(whole[:n]); !errors.Is(err, ErrBadStatement) {
			t.Fatalf("cut to %d of %d bytes: error %v", n, len(whole), err)
		}
	}
}

func FuzzStatement(f *testing.F) {
	f.Add(encoded(f, full("key")))
	f.Add(encoded(f, Statement{Name: block.Name{Key: "k"}, Owner: 5}))
	f.Add([]byte{0x9f, 0xdb, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{0xdd, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := decode(b)
		if err != nil {
			if !errors.Is(err, ErrBadStatement) || !reflect.DeepEqual(s, Statement{}) {
				t.Fatalf("error %v, statement %+v", err, s)
			}
			return
		}
		if again := decoded(t, encoded(t, s)); !reflect.DeepEqual(again, s) {
			t.Fatalf("%+v reads back as %+v", s, again)
		}
		if !s.Has() {
			return
		}
		d := New()
		d.Apply(s, start)
		var found Statement
		d.Each(func(has Statement) bool { found = has; return true })
		if !reflect.DeepEqual(found, s) {
			t.Fatalf("the directory has %+v of %+v", found, s)
		}
	})
}
