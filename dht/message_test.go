package dht

import (
	"bytes"
	"encoding/hex"
	"errors"
	"log/slog"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"cascadekv/dht/directory"
	"cascadekv/dht/fabric"
	"cascadekv/dht/fabric/sim"
	"cascadekv/dht/ring"
	"cascadekv/internal/block"
)

// TestGoldenMessages: the hex digits were put together by hand from
// docs/protocol.md and the msgpack specification: 0x90+n is an array of n,
// 0xa0+n a string of n bytes, cd a 16-bit integer, c2 and c3 false and true.
func TestGoldenMessages(t *testing.T) {
	withdrawal := directory.Statement{Name: block.Name{Key: "k"}, Owner: 5, Incarnation: 1, Version: 9}
	const withdrawn = "9fa0a16ba000000000c00000050109c0c0" // see directory's golden bytes
	for name, g := range map[string]struct {
		kind  kind
		value any
		hex   string
	}{
		"announce": {kindAnnounce, &statements{withdrawal}, "0201" + "91" + withdrawn},
		"locate":   {kindLocate, &keysMessage{"ns", []string{"a", "bc"}}, "0202" + "92a26e7392a161a26263"},
		"bury":     {kindDelete, &stampMessage{"ns", "a", 300}, "0203" + "93a26e73a161cd012c"},
		"drop":     {kindDrop, &stales{{"ns", "a", 7}}, "0204" + "9193a26e73a16107"},
		"touch":    {kindTouch, &keysMessage{"", []string{"a"}}, "0205" + "92a091a161"},
		"where":    {kindWhere, &keysMessage{"ns", []string{"a"}}, "0206" + "92a26e7391a161"},
		"refute":   {kindInvalidate, &withdrawal, "0207" + withdrawn},
		"clear":    {kindClear, &clearMessage{"ns", false}, "0208" + "92a26e73c2"},
		"all":      {kindClear, &clearMessage{"", true}, "0208" + "92a0c3"},
		"cleared":  {kindCleared, &clearedMessage{"ns", true, 300}, "0210" + "93a26e73c3cd012c"},
		"status":   {kindStatus, nil, "0209"},
		"again":    {kindResync, nil, "020a"},
		"ping":     {kindPing, nil, "020c"},
		"expire":   {kindExpire, &stampMessage{"ns", "a", 300}, "020b" + "93a26e73a161cd012c"},
		"names":    {kindNames, &keysMessage{directory.Contents, []string{"a"}}, "020e" + "92a900" + hex.EncodeToString([]byte("contents")) + "91a161"},
		"entrust":  {kindEntrust, &statements{withdrawal}, "020d" + "91" + withdrawn},
		"give":     {kindGive, &statements{withdrawal}, "020f" + "91" + withdrawn},
		"called":   {0, &stales{{"ns", "a", 7}}, "0200" + "9193a26e73a16107"},
		"no home":  {0, &stales{{"ns", "a", 0}}, "0200" + "9193a26e73a16100"},
		"copies":   {0, &copiesMessage{nil, {withdrawal}}, "0200" + "929091" + withdrawn},
	} {
		raw, err := encode(g.kind, g.value)
		if err != nil || hex.EncodeToString(raw) != g.hex {
			t.Errorf("%s: %x, %v; want %s", name, raw, err, g.hex)
		}
		if g.value == nil {
			continue
		}
		again := reflect.New(reflect.TypeOf(g.value).Elem()).Interface()
		if err := decode(raw[2:], again); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if back, err := encode(g.kind, again); err != nil || !bytes.Equal(back, raw) {
			t.Errorf("%s: %+v reads back as %+v", name, g.value, again)
		}
		for n := range raw[2:] {
			if err := decode(raw[2:2+n], again); !errors.Is(err, errBadMessage) {
				t.Errorf("%s cut to %d bytes: %v", name, n, err)
			}
		}
		if err := decode(append(raw[2:], 0xc0), again); !errors.Is(err, errBadMessage) {
			t.Errorf("%s and one byte more: %v", name, err)
		}
	}
}

// TestTheLongestAnswersFit: the most keys of the longest names with the most
// copies fit a message, as do questions for them.
func TestTheLongestAnswersFit(t *testing.T) {
	long := strings.Repeat("x", block.MaxKey)
	st := directory.Statement{
		Name:  block.Name{Parent: long, Seq: 1 << 63, Expires: time.Now(), Depth: 1 << 31},
		Info:  block.Info{ID: block.Sum(block.Bits256), Size: block.MaxSize, CRC: 1 << 31},
		Owner: 1 << 31, Incarnation: 1 << 63, Version: 1 << 63,
		Memory: &directory.Memory{Region: 1 << 31, Offset: 1 << 62, Generation: 1 << 63}, Segment: &directory.Segment{Path: long, Offset: 1 << 62, Stored: 1 << 62, StoredCRC: 1 << 31, Codec: 1 << 7},
	}
	var copies copiesMessage
	q := keysMessage{Namespace: long}
	for range locateKeys {
		q.Keys = append(q.Keys, long)
		one := make([]directory.Statement, directory.MaxCopies)
		for i := range one {
			one[i] = st
		}
		copies = append(copies, one)
	}
	for _, v := range []any{&q, &copies} {
		if b, err := reply(v); err != nil || len(b) > fabric.MaxMessage {
			t.Errorf("%T: %d bytes, %v", v, len(b), err)
		}
	}
	b := outbox{wait: map[statementKey]*directory.Statement{}, drop: map[nameKey]uint64{}, idle: make(chan struct{})}
	for i := range 3000 {
		s := st
		s.Name.Namespace, s.Name.Key = long, long[:1000]+time.Duration(i).String()
		b.add(&s)
		b.addDrops(stales{{s.Name.Namespace, s.Name.Key, 1 << 63}})
	}
	told, dropped := 0, 0
	for p, _ := b.take(); !p.empty(); p, _ = b.take() {
		told, dropped = told+len(p.statements), dropped+len(p.drops)
		for _, v := range []any{&p.statements, &p.drops} {
			if raw, err := encode(kindAnnounce, v); err != nil || len(raw) > fabric.MaxMessage {
				t.Fatalf("%T: %d bytes, %v", v, len(raw), err)
			}
		}
	}
	if told != 3000 || dropped != 3000 {
		t.Errorf("%d statements and %d drops of 3000", told, dropped)
	}
}

func alone(t testing.TB) (*Node, *shelf) {
	s := &shelf{names: map[string]directory.Statement{}, bytes: map[uint64][]byte{}}
	n, err := New(Options{
		Fabric: sim.New(sim.Options{}).Join(0, 1), Incarnation: 1, Ring: sharedRing, Log: slog.New(slog.DiscardHandler),
		CallDeadline: time.Millisecond,
	}, s)
	if err != nil {
		t.Fatal(err)
	}
	s.node = n
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n, s
}

// TestLengthsOnTheWireAllocateNothing: heads that promise 2³² elements or bytes.
func TestLengthsOnTheWireAllocateNothing(t *testing.T) {
	n, _ := alone(t)
	heads := [][]byte{
		{0xdd, 0xff, 0xff, 0xff, 0xff},                     // array
		{0x91, 0xdd, 0x00, 0x0f, 0xff, 0xff},               // array in an array
		{0x92, 0xdb, 0x7f, 0xff, 0xff, 0xff},               // string
		{0x92, 0xa0, 0xdd, 0x7f, 0xff, 0xff, 0xff},         // keys
		{0x91, 0x9f, 0xdb, 0x7f, 0xff, 0xff, 0xff},         // a statement's namespace
		{0xc6, 0x7f, 0xff, 0xff, 0xff}, {0xc9, 0, 0, 0, 0}, // bin, ext
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for k := range byte(12) {
		for _, h := range heads {
			_, _ = server{n}.Answer(t.Context(), 1, append([]byte{messageVersion, k}, h...))
		}
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 4<<20 {
		t.Errorf("%d bytes for %d messages of 10 bytes", grown, 12*len(heads))
	}
}

func FuzzAnswer(f *testing.F) {
	st := directory.Statement{
		Name: block.Name{Namespace: "ns", Key: "k", Seq: 5}, Info: block.Info{ID: block.Sum(block.Bits128), Size: 3},
		Owner: 1, Incarnation: 1, Version: 1, Memory: &directory.Memory{Generation: 4}, Segment: &directory.Segment{Path: "p"},
	}
	for _, seed := range []struct {
		k kind
		v any
	}{
		{kindAnnounce, &statements{st, st}}, {kindLocate, &keysMessage{"ns", []string{"k", "l"}}},
		{kindDelete, &stampMessage{"ns", "k", 5}}, {kindDrop, &stales{{"ns", "k", 5}}},
		{kindTouch, &keysMessage{"ns", []string{"k"}}}, {kindWhere, &keysMessage{"ns", []string{"k"}}},
		{kindInvalidate, &st}, {kindClear, &clearMessage{"ns", true}}, {kindCleared, &clearedMessage{"ns", false, 5}}, {kindStatus, nil}, {kindResync, nil}, {kindPing, nil}, {kindExpire, &stampMessage{"ns", "k", 5}},
		{kindEntrust, &statements{st}}, {kindGive, &statements{st, st}},
	} {
		raw, err := encode(seed.k, seed.v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	n, s := alone(f)
	s.keep("k", 1, []byte("bytes"), true)
	f.Fuzz(func(t *testing.T, req []byte) {
		before := bytes.Clone(req)
		answer, err := server{n}.Answer(t.Context(), 1, req)
		if !bytes.Equal(req, before) {
			t.Fatal("the request was written to")
		}
		if err != nil {
			return
		}
		switch kind(req[1]) {
		case kindAnnounce:
			err = decode(answer, new(stales))
		case kindLocate:
			err = decode(answer, new(copiesMessage))
		case kindWhere:
			err = decode(answer, new(directory.Statement))
		}
		if err != nil || len(answer) > fabric.MaxMessage {
			t.Fatalf("answer of %d bytes: %v", len(answer), err)
		}
	})
}

// ringOf begins with one ring for all nodes: 1,024 rings of one rank take long.
func ringOf(prev *ring.Ring, ranks []fabric.Rank) (*ring.Ring, error) {
	if prev == nil {
		ranks = []fabric.Rank{0}
	}
	return sharedRing(prev, ranks)
}

// benchmarkNode is a node that believes in so many ranks, one of them real.
func benchmarkNode(b *testing.B, ranks int) *Node {
	b.Helper()
	w := sim.New(sim.Options{})
	var members []Member
	nodes := map[fabric.Rank]*Node{}
	for i := range ranks {
		members = append(members, Member{Rank: fabric.Rank(i), Incarnation: 1})
		s := &shelf{rank: fabric.Rank(i), names: map[string]directory.Statement{}, bytes: map[uint64][]byte{}}
		n, err := New(Options{Fabric: w.Join(fabric.Rank(i), 1), Incarnation: 1, Ring: ringOf, NegativeFor: 1}, s)
		if err != nil {
			b.Fatal(err)
		}
		nodes[fabric.Rank(i)] = n
		b.Cleanup(func() {
			if err := n.Close(); err != nil {
				b.Error(err)
			}
		})
	}
	nodes[0].SetMembers(members...)
	return nodes[0]
}

func BenchmarkLocate(b *testing.B) {
	for _, ranks := range []int{4, 1024} {
		for _, keys := range []int{1, 64} {
			b.Run(time.Duration(ranks).String()+"/"+time.Duration(keys).String(), func(b *testing.B) {
				n := benchmarkNode(b, ranks)
				var ask []string
				for i := range keys {
					ask = append(ask, strings.Repeat("k", 60)+time.Duration(i).String())
				}
				b.ReportAllocs()
				for b.Loop() {
					n.Locate(b.Context(), "ns", ask)
				}
			})
		}
	}
}

// BenchmarkSuspect is a rank that becomes suspect and alive again, among 1,024:
// what a node does most often with its members.
func BenchmarkSuspect(b *testing.B) {
	n := benchmarkNode(b, 1024)
	b.ReportAllocs()
	for b.Loop() {
		n.SetMembers(Member{Rank: 7, Incarnation: 1, State: fabric.Suspect})
		n.SetMembers(Member{Rank: 7, Incarnation: 1})
	}
}
