package codec

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
)

// TestPayloadGolden fixes a whole payload: two values of planes, one of which
// is a frame, and a byte left over.
func TestPayloadGolden(t *testing.T) {
	c := newCoder(t, Options{})
	block := make([]byte, 2049)
	noise := randomBytes(1024)
	for i := range noise {
		block[2*i], block[2*i+1] = noise[i], 0x3f
	}
	block[2048] = 0x3f
	got := coded(t, c, Shuffle2, Huffman, block)
	want := binary.LittleEndian.AppendUint32(nil, 1024)
	want = binary.LittleEndian.AppendUint32(want, 13)
	want = append(want, noise...)
	want = append(want, 0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0x01, 0x04, 0, 0, 0x0b, 0x20, 0, 0x3f)
	if !bytes.Equal(got, want) {
		t.Errorf("got  %x\nwant %x", got, want)
	}
}

// TestRoundTrip also decodes where the encoding lies, from several places.
func TestRoundTrip(t *testing.T) {
	c := newCoder(t, Options{Workers: 1})
	encoded := 0
	for kind, content := range data() {
		for _, size := range sizes {
			src := content[:size]
			for _, n := range Numbers[1:] {
				for _, effort := range []Effort{Huffman, Matches} {
					what := fmt.Sprintf("%v, effort %d, %d bytes of %s", n, effort, size, kind)
					dst := make([]byte, size)
					stored, err := c.EncodeAs(n, effort, dst, src)
					if errors.Is(err, ErrNoGain) {
						continue
					}
					if err != nil || stored >= size {
						t.Fatalf("%s: %d bytes, %v", what, stored, err)
					}
					encoded++
					roundTrip(t, c, what, n, src, dst[:stored])
				}
			}
		}
	}
	if encoded < 100 {
		t.Errorf("only %d cases were encoded", encoded)
	}
}

func roundTrip(t *testing.T, c *Coder, what string, n Number, src, p []byte) {
	t.Helper()
	got := make([]byte, len(src))
	if err := c.Decode(n, got, p); err != nil || !bytes.Equal(got, src) {
		t.Fatalf("%s: wrong bytes came back, %v", what, err)
	}
	if got, err := inPieces(c, n, len(src), p); err != nil || !bytes.Equal(got, src) {
		t.Fatalf("%s: wrong bytes came back in pieces, %v", what, err)
	}
	for _, at := range []int{0, len(src) - len(p)} {
		room := bytes.Repeat([]byte{0xcc}, len(src))
		copy(room[at:], p)
		if err := c.DecodeInPlace(n, room, at, len(p)); err != nil || !bytes.Equal(room, src) {
			t.Fatalf("%s: wrong bytes in place from %d, %v", what, at, err)
		}
	}
}

// inPieces decodes with DecodeFrom.
func inPieces(c *Coder, n Number, size int, p []byte) (out []byte, err error) {
	err = c.DecodeFrom(n, size, len(p), func(q []byte) error {
		if len(q) > len(p) {
			return fmt.Errorf("asked for %d bytes of %d", len(q), len(p))
		}
		p = p[copy(q, p):]
		return nil
	}, func(piece []byte) { out = append(out, piece...) })
	if err == nil && len(p) > 0 {
		err = fmt.Errorf("%d bytes were not asked for", len(p))
	}
	return out, err
}

// TestDecodeFromStops: an error of who delivers the bytes ends it as it is.
func TestDecodeFromStops(t *testing.T) {
	c, broken := newCoder(t, Options{}), errors.New("broken")
	p := coded(t, c, Shuffle2, Huffman, bf16Bytes(3*maxPiece))
	for calls := range 4 {
		left := calls
		err := c.DecodeFrom(Shuffle2, 3*maxPiece, len(p), func([]byte) error {
			if left--; left < 0 {
				return broken
			}
			return nil
		}, func([]byte) {})
		if want := []error{broken, ErrCorrupt}; !errors.Is(err, want[min(calls, 1)]) { // zeros are no encoding
			t.Errorf("after %d calls: %v", calls, err)
		}
	}
	for _, size := range []int{0, 1, len(p)} {
		if err := c.DecodeFrom(Shuffle2, size, len(p), func([]byte) error { return broken }, nil); !errors.Is(err, ErrCorrupt) {
			t.Errorf("as a block of %d: %v", size, err)
		}
	}
}

func TestRoomIsRespected(t *testing.T) {
	c := newCoder(t, Options{})
	src := bf16Bytes(600 << 10)
	full := coded(t, c, Shuffle2, Huffman, src)
	for _, room := range []int{0, 1, 8, 24, 30, 1 << 10, len(full) - 1, len(full), len(full) + 1} {
		dst := bytes.Repeat([]byte{0xcc}, room+8)
		n, err := c.EncodeAs(Shuffle2, Huffman, dst[:room], src)
		if fits := room >= len(full); fits != (err == nil) || !fits && !errors.Is(err, ErrNoGain) {
			t.Errorf("room of %d for %d: %d, %v", room, len(full), n, err)
		}
		if !bytes.Equal(dst[room:], bytes.Repeat([]byte{0xcc}, 8)) {
			t.Errorf("room of %d: wrote behind it", room)
		}
	}
}

// TestHostilePayloads gives the decoder what no encoder writes.
func TestHostilePayloads(t *testing.T) {
	c := newCoder(t, Options{})
	const size = maxPiece + 5000
	good := coded(t, c, Shuffle2, Huffman, bf16Bytes(size))
	l, err := layoutOf(Shuffle2, size)
	if err != nil {
		t.Fatal(err)
	}
	frame := l.table() + l.planeLen(l.pieceLen(0), 0) // plane 1, behind plane 0 as it is
	change := func(f func(p []byte) []byte) []byte { return f(bytes.Clone(good)) }
	setLength := func(i int, v uint32) []byte {
		return change(func(p []byte) []byte { binary.LittleEndian.PutUint32(p[4*i:], v); return p })
	}
	// A frame that declares, or makes, more than its plane: 128 KiB of zeros.
	bomb := []byte{0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0, 0, 2, 0, 3, 0, 0x10, 0}
	undeclared := []byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x38, 3, 0, 0x10, 0}
	for name, p := range map[string][]byte{
		"empty":                {},
		"shorter than lengths": good[:15],
		"cut":                  good[:len(good)-1],
		"longer":               append(bytes.Clone(good), 0),
		"as long as the block": make([]byte, size),
		"plane too long":       setLength(0, uint32(l.planeLen(l.pieceLen(0), 0))+1),
		"length of 4 GiB":      setLength(3, 1<<32-1),
		"lengths too small":    setLength(1, 0),
		"frame is no frame":    change(func(p []byte) []byte { clear(p[frame : frame+4]); return p }),
	} {
		t.Run(name, func(t *testing.T) {
			if err := c.Decode(Shuffle2, make([]byte, size), p); !errors.Is(err, ErrCorrupt) {
				t.Errorf("decoded to %v, want ErrCorrupt", err)
			}
		})
	}
	for name, frame := range map[string][]byte{"bomb": bomb, "undeclared bomb": undeclared, "dictionary": {0x28, 0xb5, 0x2f, 0xfd, 0x21, 9, 100, 1, 0, 0}} {
		t.Run(name, func(t *testing.T) {
			p := append(binary.LittleEndian.AppendUint32(nil, uint32(len(frame))), frame...)
			dst := bytes.Repeat([]byte{0xcc}, 4096+64)
			if err := c.Decode(Zstd, dst[:4096:4096], p); !errors.Is(err, ErrCorrupt) {
				t.Errorf("decoded to %v, want ErrCorrupt", err)
			}
			if !bytes.Equal(dst[4096:], bytes.Repeat([]byte{0xcc}, 64)) {
				t.Error("wrote behind the block")
			}
		})
	}
	if st := c.Stats(); st.Corrupt == 0 {
		t.Error("damage is not counted")
	}
}

func TestHostilePlaces(t *testing.T) {
	c := newCoder(t, Options{})
	for _, p := range [][2]int{{-1, 10}, {0, -1}, {5, 100}, {101, 0}, {0, 101}, {1 << 62, 1 << 62}} {
		if err := c.DecodeInPlace(Zstd, make([]byte, 100), p[0], p[1]); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%v: %v", p, err)
		}
	}
	for _, n := range []Number{None, 4, 255} {
		if err := c.Decode(n, make([]byte, 100), make([]byte, 10)); !errors.Is(err, ErrUnknown) {
			t.Errorf("%v: %v", n, err)
		}
		if _, err := c.EncodeAs(n, Huffman, make([]byte, 100), make([]byte, 100)); !errors.Is(err, ErrUnknown) {
			t.Errorf("encode as %v: %v", n, err)
		}
	}
}

// FuzzDecode wants both decoders to agree, and nothing outside of dst touched.
func FuzzDecode(f *testing.F) {
	c := newCoder(f, Options{Workers: 1})
	for n := range uint8(5) {
		f.Add(n, uint32(100), []byte{})
	}
	for _, kind := range []string{"zero", "bf16", "fp32", "repeated"} {
		for _, size := range []int{1024, 5000, maxPiece + 5} {
			for _, n := range Numbers[1:] {
				dst := make([]byte, size)
				if stored, err := c.EncodeAs(n, Matches, dst, data()[kind][:size]); err == nil {
					f.Add(uint8(n), uint32(size), dst[:stored])
				}
			}
		}
	}
	f.Fuzz(func(t *testing.T, number uint8, size uint32, p []byte) {
		n, want := Number(number%5), int(size%(3*maxPiece))
		guarded := bytes.Repeat([]byte{0xcc}, want+64)
		err := c.Decode(n, guarded[:want:want], p)
		if err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrUnknown) {
			t.Fatal(err)
		}
		if got, pieces := inPieces(c, n, want, p); (err == nil) != (pieces == nil) || err == nil && !bytes.Equal(got, guarded[:want]) {
			t.Fatalf("decoded to %v, in pieces to %v", err, pieces)
		}
		room := bytes.Repeat([]byte{0xcc}, max(want, len(p))+64)
		copy(room, p)
		if len(p) <= want {
			inPlace := c.DecodeInPlace(n, room[:want:want], 0, len(p))
			if (err == nil) != (inPlace == nil) {
				t.Fatalf("decoded to %v, in place to %v", err, inPlace)
			}
			if err == nil && !bytes.Equal(room[:want], guarded[:want]) {
				t.Fatal("other bytes in place")
			}
		} else if err == nil {
			t.Fatalf("%d bytes were taken for %d", len(p), want)
		}
		for _, g := range [][]byte{guarded[want:], room[max(want, len(p)):]} {
			if !bytes.Equal(g, bytes.Repeat([]byte{0xcc}, 64)) {
				t.Fatal("wrote behind the block")
			}
		}
	})
}

// FuzzRoundTrip wants every block back under every codec.
func FuzzRoundTrip(f *testing.F) {
	c := newCoder(f, Options{Workers: 1, MinSaving: 0.01, AlignBytes: 1})
	f.Add([]byte("some text that repeats, some text that repeats, some text"), uint16(1))
	f.Add(bf16Bytes(3000), uint16(100))
	f.Add([]byte("0"), uint16(0))
	f.Fuzz(func(t *testing.T, seed []byte, times uint16) {
		if len(seed)*int(times) > 3*maxPiece {
			return
		}
		src := bytes.Repeat(seed, int(times))
		dst := make([]byte, len(src))
		for _, n := range Numbers[1:] {
			for _, e := range []Effort{Huffman, Matches} {
				stored, err := c.EncodeAs(n, e, dst, src)
				if errors.Is(err, ErrNoGain) {
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				got := make([]byte, len(src))
				if err := c.Decode(n, got, dst[:stored]); err != nil || !bytes.Equal(got, src) {
					t.Fatalf("%v, effort %d: wrong bytes came back, %v", n, e, err)
				}
			}
		}
		out, err := c.Encode("fuzz", dst, src)
		if err != nil {
			t.Fatal(err)
		}
		if out.Codec == None {
			return
		}
		got := make([]byte, len(src))
		if err := c.Decode(out.Codec, got, dst[:out.Size]); err != nil || !bytes.Equal(got, src) {
			t.Fatalf("chosen %v: wrong bytes came back, %v", out.Codec, err)
		}
	})
}
