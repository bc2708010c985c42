package codec

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"cascadekv/internal/testing/noise"
)

func newCoder(t testing.TB, o Options) *Coder {
	t.Helper()
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func seeded() *rand.Rand { return rand.New(rand.NewPCG(7, 11)) }

// randomBytes nothing can compress.
func randomBytes(n int) []byte { return noise.Bytes(7, n) }

// bf16Bytes are normal numbers as bf16.
func bf16Bytes(n int) []byte {
	r, p := seeded(), make([]byte, n)
	for i := 0; i+2 <= n; i += 2 {
		binary.LittleEndian.PutUint16(p[i:], uint16(math.Float32bits(float32(r.NormFloat64()))>>16))
	}
	return p
}

// fp32Bytes are normal numbers as fp32.
func fp32Bytes(n int) []byte {
	r, p := seeded(), make([]byte, n)
	for i := 0; i+4 <= n; i += 4 {
		binary.LittleEndian.PutUint32(p[i:], math.Float32bits(float32(r.NormFloat64())))
	}
	return p
}

// repeated is noise that comes again every 1000 bytes: only matches help.
func repeated(n int) []byte {
	p := randomBytes(n)
	for i := 1000; i < n; i++ {
		p[i] = p[i-1000]
	}
	return p
}

// most is the largest size in sizes.
const most = 2*maxPiece + 7

// data are kinds of content, as long as the largest size.
var data = sync.OnceValue(func() map[string][]byte {
	return map[string][]byte{
		"zero": make([]byte, most), "random": randomBytes(most), "bf16": bf16Bytes(most), "fp32": fp32Bytes(most), "repeated": repeated(most),
	}
})

// sizes lie around every edge of the layout.
var sizes = []int{1, 2, 3, 5, 1023, 1024, 4097, maxPlane, maxPlane + 1, maxPiece + 3, most}

// coded returns an encoding of src; t fails when there is none.
func coded(t testing.TB, c *Coder, n Number, e Effort, src []byte) []byte {
	t.Helper()
	dst := make([]byte, len(src))
	size, err := c.EncodeAs(n, e, dst, src)
	if err != nil {
		t.Fatalf("%v of %d bytes: %v", n, len(src), err)
	}
	return dst[:size]
}
