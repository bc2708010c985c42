package index

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"cascadekv/internal/block"
)

func goldenID(wide bool) (id block.ID) {
	for i := range id[:16] {
		id[i] = byte(0xA0 + i)
	}
	for i := 16; wide && i < 32; i++ {
		id[i] = byte(i)
	}
	return id
}

func goldenKey(b byte) (k Key) {
	for i := range k {
		k[i] = b + byte(i)
	}
	return k
}

var goldenPlace = place{
	segment: 0x01020304, offset: 131072, size: 2 << 20, stored: 2 << 20, crc: 0xDEADBEEF, storedCRC: 0xDEADBEEF,
}

var goldenSpace = Space{Text: "ns", Seq: 0x0102030405060708, Layout: block.Layout{
	Bytes: 81920, KeyBytes: 40960, Tokens: 16, Layers: 2, Heads: 8, HeadDim: 80, DType: "fp8",
}}

func goldenCoded() place {
	p := goldenPlace
	p.codec, p.stored, p.storedCRC = 1, 1000, 0x11223344
	return p
}

// The bytes of docs/format.md §5. A change here is a new version of the format.
func TestGoldenBytes(t *testing.T) {
	name := nameRecord{flags: flagPrefix | flagCopy, key: goldenKey(0x10), segment: 5, seq: 0x0102030405060708, id: goldenID(false), copy: goldenPlace}
	whole := nameRecord{
		flags: flagBound | flagCopy | flagAlone | flagInferred, key: goldenKey(0x10), segment: 5, seq: 9, id: goldenID(true), depth: 7, copy: goldenCoded(),
		expires: time.Unix(1800000000, 5),
	}
	dropped := nameRecord{flags: flagDropped, key: goldenKey(0x10), segment: 6, seq: 10}
	outlived := dropped
	outlived.flags |= flagHides | flagOutlived
	noted := name
	noted.note = "note"
	header := dirHeader{base: 3}
	copy(header.campaign[:], bytes.Repeat([]byte{0xCC}, 32))
	for what, c := range map[string]struct {
		got  []byte
		want string
	}{
		"segment key": {appendSegmentKey(nil, 0x01020304), "0101020304"},
		"block key":   {appendBlockKey(nil, goldenID(false)), "02a0a1a2a3a4a5a6a7a8a9aaabacadaeaf"},
		"wide key":    {appendBlockKey(nil, goldenID(true)), "02a0a1a2a3a4a5a6a7a8a9aaabacadaeaf101112131415161718191a1b1c1d1e1f"},
		"name key":    {appendNameKey(nil, spot{goldenKey(0x10), 258}), "03101112131415161718191a1b1c1d1e1f00000102"},
		"stray key":   {appendStrayKey(nil, goldenID(true), goldenKey(0x10)), "05a0a1a2a3a4a5a6a7a8a9aaabacadaeaf101112131415161718191a1b1c1d1e1f"},
		"link":        {appendLink(nil, spot{goldenKey(0x10), 258}), "80101112131415161718191a1b1c1d1e1f00000102"},
		"segment row": {appendSegmentRow(nil, segmentRow{Segment{3, 0x1122334455667788, 9}, true, 17, 500, 200, 290, 0x0A0B0C0D, 30, 0x6B49D200}),
			"020100000300000088776655443322110900000000000000" + "1100000000000000f401000000000000" +
				"c800000000000000" + "2201000000000000" + "0d0c0b0a00000000" + "1e00000000000000" + "00d2496b00000000"},
		"block record": {appendBlockRecord(nil, blockRecord{goldenKey(0x10), goldenPlace}),
			"101112131415161718191a1b1c1d1e1f" + "04030201efbeadde0080800880808001"},
		"coded place": {appendPlace(nil, goldenCoded()), "04030201efbeadde0180800880808001e80744332211"},
		"name": {appendNameRecord(nil, name), "2100101112131415161718191a1b1c1d1e1f" + "050000000807060504030201" + "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf" +
			"04030201efbeadde0080800880808001"},
		"noted name": {appendNameRecord(nil, noted), "2100101112131415161718191a1b1c1d1e1f" + "050000000807060504030201" + "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf" +
			"04030201efbeadde0080800880808001" + "6e6f7465"},
		"namespace key": {appendSpaceKey(nil, Namespace(goldenKey(0x10))), "04101112131415161718191a1b1c1d1e1f"},
		"namespace row": {appendSpace(nil, goldenSpace), "0807060504030201" + "0040010000000000" + "00a0000000000000" + "10000000" + "02000000" + "08000000" + "50000000" + "03000000" + "667038" + "6e73"},
		"whole name": {appendNameRecord(nil, whole), "7601101112131415161718191a1b1c1d1e1f" + "050000000900000000000000" + "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf" +
			"101112131415161718191a1b1c1d1e1f" + "00d2496b0000000005000000" + "07000000" + "04030201efbeadde0180800880808001e80744332211"},
		"dropped":  {appendNameRecord(nil, dropped), "0800101112131415161718191a1b1c1d1e1f" + "060000000a00000000000000" + "00000000000000000000000000000000"},
		"outlived": {appendNameRecord(nil, outlived), "0806101112131415161718191a1b1c1d1e1f" + "060000000a00000000000000" + "00000000000000000000000000000000"},
		"header": {encodeHeader(header), "434153434944580a" + "06000000" + "00000000" + "0300000000000000" +
			"cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc" + "00000000" + "c762427b"},
		"namespace":  {func() []byte { n := NamespaceOf("ns"); return n[:] }(), "7bfba6e0021f1fd1183dfefe60216f13"},
		"hashed key": {func() []byte { k := NamespaceOf("ns").Key("key"); return k[:] }(), "79448d5fa1bfc1577e77f085e4f3cbd2"},
	} {
		if got := hex.EncodeToString(c.got); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", what, got, c.want)
		}
	}
}

func TestCodecRoundTrip(t *testing.T) {
	for _, p := range []place{goldenPlace, goldenCoded(), {}, {segment: math.MaxUint32, offset: math.MaxInt64, size: block.MaxSize, stored: block.MaxSize}} {
		if got, err := decodePlace(appendPlace(nil, p)); err != nil || got != p {
			t.Errorf("%+v, %v; want %+v", got, err, p)
		}
		if n := len(appendPlace(nil, p)); n > placeMost {
			t.Errorf("a place of %d bytes", n)
		}
	}
}

// Cut or changed records are refused or read as what they say; none panics, and
// what is read writes the same bytes again.
func FuzzRecords(f *testing.F) {
	f.Add(appendNameRecord(nil, nameRecord{key: goldenKey(1), id: goldenID(true), expires: time.Unix(5, 6), flags: flagAlone | flagCopy, copy: goldenCoded()}))
	f.Add(appendBlockRecord(nil, blockRecord{goldenKey(1), goldenPlace}))
	f.Add(appendSegmentRow(nil, segmentRow{mark: 5, dead: true, stale: 1}))
	f.Add(appendLink(nil, spot{goldenKey(1), 3}))
	f.Add(appendNameKey(nil, spot{goldenKey(1), 3}))
	f.Add(appendBlockKey(nil, goldenID(true)))
	f.Add(appendStrayKey(nil, goldenID(false), goldenKey(1)))
	f.Add(encodeHeader(dirHeader{base: 9}))
	f.Add(appendSpace(nil, goldenSpace))
	f.Fuzz(func(t *testing.T, p []byte) {
		same := func(what string, again []byte, err error) {
			if err != nil && !errors.Is(err, ErrBadFormat) {
				t.Errorf("%s: %v", what, err)
			}
			if err == nil && !bytes.Equal(again, p) {
				t.Errorf("%s: % x reads as what writes % x", what, p, again)
			}
		}
		name, err := decodeNameRecord(p)
		same("name", appendNameRecord(nil, name), err)
		rec, err := decodeBlockRecord(p)
		same("block", appendBlockRecord(nil, rec), err)
		link, err := decodeLink(p)
		same("link", appendLink(nil, link), err)
		at, err := decodeNameKey(p)
		same("name key", appendNameKey(nil, at), err)
		number, err := decodeSegmentKey(p)
		same("segment key", appendSegmentKey(nil, number), err)
		space, err := decodeSpace(p)
		same("namespace", appendSpace(nil, space), err)
		if _, err := decodeSegmentRow(p); err != nil && !errors.Is(err, ErrBadFormat) {
			t.Error(err) // reserved bytes are ignored
		}
		if _, err := decodeHeader(p); err != nil && !errors.Is(err, ErrBadFormat) {
			t.Error(err)
		}
		if half, name, err := decodeStrayKey(p); err != nil || !bytes.Equal(appendStrayKey(nil, block.ID(append(half[:], make([]byte, 16)...)), name), p) {
			if !errors.Is(err, ErrBadFormat) {
				t.Errorf("stray key % x: %v", p, err)
			}
		}
		if _, err := decodeBlockKey(p); err != nil && !errors.Is(err, ErrBadFormat) {
			t.Error(err)
		}
	})
}

// The rules of Pebble's Split, on keys as they come.
func TestComparer(t *testing.T) {
	keys := [][]byte{{kindSegment}, appendSegmentKey(nil, 0), appendSegmentKey(nil, 9), {kindBlock}, appendBlockKey(nil, goldenID(false)), appendBlockKey(nil, goldenID(true))}
	for _, k := range []Key{{}, goldenKey(1), goldenKey(0xF0), Key(bytes.Repeat([]byte{0xFF}, 16))} {
		keys = append(keys, appendRun(nil, k), appendNameKey(nil, spot{k, alone}), appendNameKey(nil, spot{k, 7}), appendNameKey(nil, spot{k, math.MaxUint32}))
		keys = append(keys, appendStrays(nil, goldenID(false)), appendStrayKey(nil, goldenID(false), k))
	}
	for _, a := range keys {
		prefix := a[:comparer.Split(a)]
		if len(a) > len(prefix) && comparer.Compare(prefix, a) >= 0 {
			t.Errorf("%x does not sort behind its prefix", a)
		}
		next := nextPrefix([]byte("before"), prefix)
		if !bytes.HasPrefix(next, []byte("before")) || comparer.Split(next[6:]) != len(next)-6 || comparer.Compare(next[6:], a) <= 0 {
			t.Errorf("the prefix behind %x: %x", prefix, next)
		}
		for _, b := range keys {
			prefixes := comparer.Compare(prefix, b[:comparer.Split(b)])
			if whole := comparer.Compare(a, b); prefixes != 0 && whole != prefixes {
				t.Errorf("%x and %x: %d by prefix, %d whole", a, b, prefixes, whole)
			}
		}
	}
}

func TestSieve(t *testing.T) {
	s, r, again := newSieve(10000), rand.New(rand.NewPCG(1, 1)), 0
	var all [][]byte
	for range 10000 {
		k := garbage(16, r)
		all = append(all, k)
		if s.add(k) {
			again++
		}
	}
	if again > 100 {
		t.Errorf("%d of 10000 new keys taken for known", again)
	}
	for _, k := range all {
		if !s.add(k) {
			t.Fatal("a key is forgotten")
		}
	}
}

func TestNameOf(t *testing.T) {
	n := block.Name{Namespace: "ns", Key: "k", Parent: "p", Depth: 4, Seq: 5, Prefix: true, Bound: true, Expires: time.Unix(6, 7)}
	want := Name{Key: NamespaceOf("ns").Key("k"), Parent: NamespaceOf("ns").Key("p"), ID: goldenID(false), Depth: 4, Seq: 5, Prefix: true, Bound: true, Expires: n.Expires}
	if got := NameOf(goldenID(false), n); got != want {
		t.Errorf("%+v", got)
	}
	if n.Parent = ""; NameOf(goldenID(false), n).Parent != (Key{}) {
		t.Error("a head has a parent")
	}
	if NamespaceOf("a").Key("b") == NamespaceOf("ab").Key("") {
		t.Error("namespace and key run together")
	}
	long := string(bytes.Repeat([]byte("x"), block.MaxKey))
	if NamespaceOf(long).Key(long) == NamespaceOf(long).Key(long[1:]) {
		t.Error("long keys are cut")
	}
}
