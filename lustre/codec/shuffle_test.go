package codec

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"testing"
)

// TestShuffleGolden is docs/format.md §4.1 with the bytes written out.
func TestShuffleGolden(t *testing.T) {
	const block = "00112233445566778899aabbccddeeff0123456789abcdef02"
	for stride, want := range map[int]string{
		1: block,
		2: "0022446688aaccee014589cd" + "1133557799bbddff2367abef" + "02",
		4: "004488cc0189" + "115599dd23ab" + "2266aaee45cd" + "3377bbff67ef" + "02",
	} {
		t.Run(fmt.Sprint(stride), func(t *testing.T) {
			src, err := hex.DecodeString(block)
			if err != nil {
				t.Fatal(err)
			}
			got := make([]byte, len(src))
			Shuffle(got, src, stride)
			if hex.EncodeToString(got) != want {
				t.Errorf("got  %x\nwant %s", got, want)
			}
		})
	}
}

// slowShuffle is the rule as docs/format.md states it.
func slowShuffle(src []byte, stride int) (dst []byte) {
	whole := len(src) / stride * stride
	for j := range stride {
		for i := j; i < whole; i += stride {
			dst = append(dst, src[i])
		}
	}
	return append(dst, src[whole:]...)
}

func TestShuffleAgainstTheRule(t *testing.T) {
	for _, stride := range []int{1, 2, 4} {
		for n := range 200 {
			src := randomBytes(n)
			// Room on both sides shows stores that go too far.
			got := bytes.Repeat([]byte{0xcc}, n+32)
			Shuffle(got[16:16+n], src, stride)
			if want := slowShuffle(src, stride); !bytes.Equal(got[16:16+n], want) {
				t.Fatalf("stride %d, %d bytes: got %x, want %x", stride, n, got[16:16+n], want)
			}
			back := bytes.Repeat([]byte{0xcc}, n+32)
			Unshuffle(back[16:16+n], got[16:16+n], stride)
			if !bytes.Equal(back[16:16+n], src) {
				t.Fatalf("stride %d, %d bytes come back as %x, want %x", stride, n, back[16:16+n], src)
			}
			for _, p := range [][]byte{got[:16], got[16+n:], back[:16], back[16+n:]} {
				if !bytes.Equal(p, bytes.Repeat([]byte{0xcc}, 16)) {
					t.Fatalf("stride %d, %d bytes: wrote outside of its destination", stride, n)
				}
			}
		}
	}
}

func BenchmarkShuffle(b *testing.B) {
	src, dst := randomBytes(maxPiece), make([]byte, maxPiece)
	for _, stride := range []int{1, 2, 4} {
		b.Run(fmt.Sprintf("out/%d", stride), func(b *testing.B) {
			b.SetBytes(maxPiece)
			for b.Loop() {
				Shuffle(dst, src, stride)
			}
		})
		b.Run(fmt.Sprintf("back/%d", stride), func(b *testing.B) {
			b.SetBytes(maxPiece)
			for b.Loop() {
				Unshuffle(dst, src, stride)
			}
		})
	}
}
