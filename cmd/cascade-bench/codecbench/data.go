package codecbench

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
)

// Codec data kinds.
const (
	dataBF16   = "bf16"
	dataFP16   = "fp16"
	dataRandom = "random"
	dataZero   = "zero"
)

// fill fills p with blocks of one kind. Random bytes and tensors are
// the same in every run.
func fill(kind string, p []byte, block int) {
	r := rand.New(rand.NewPCG(20, 26))
	switch kind {
	case dataBF16:
		fillKV(p, block, r, bf16Of)
	case dataFP16:
		fillKV(p, block, r, fp16Of)
	case dataRandom:
		for i := range p {
			p[i] = byte(r.Uint32())
		}
	default:
		clear(p)
	}
}

// The shape of the tensors that fillKV makes, that of one layer of a model
// with grouped queries.
const (
	kvHeads    = 8
	kvHeadDim  = 128
	kvChannels = kvHeads * kvHeadDim
	kvTokens   = 16 // of a block
	ropeBase   = 500000
)

// kvLayer is one layer's keys or values: numbers with a spread and a mean for
// each channel that change slowly from token to token.
type kvLayer struct {
	spread, mean, state []float64
	memory              float64 // correlation of a token with the one before it
	rope                bool
}

// newKVLayer draws a layer. What measurements of real caches agree on is
// imitated: spreads differ among channels by small factors; keys have a few
// channels in each head whose mean is many times their spread, values have
// none; neighbouring tokens are alike, keys more so than values.
func newKVLayer(r *rand.Rand, keys bool) *kvLayer {
	l := &kvLayer{memory: 0.3, rope: keys}
	scale, vary := 0.1*math.Exp(0.5*r.NormFloat64()), 0.3
	if keys {
		l.memory, scale, vary = 0.7, math.Exp(0.2*r.NormFloat64()), 0.5
	}
	for range kvChannels {
		spread := scale * math.Exp(vary*r.NormFloat64())
		mean := 0.3 * spread * r.NormFloat64()
		if keys && r.IntN(64) == 0 {
			mean = spread * (6 + 6*r.Float64()) * float64(1-2*r.IntN(2))
		}
		l.spread, l.mean, l.state = append(l.spread, spread), append(l.mean, mean), append(l.state, r.NormFloat64())
	}
	return l
}

// token returns the numbers of the next token, which is at position pos. Keys
// are stored rotated by their position, as caches have them.
func (l *kvLayer) token(r *rand.Rand, pos int, out []float64) {
	fresh := math.Sqrt(1 - l.memory*l.memory)
	for c := range out {
		l.state[c] = l.memory*l.state[c] + fresh*r.NormFloat64()
		out[c] = l.mean[c] + l.spread[c]*l.state[c]
	}
	if !l.rope {
		return
	}
	const half = kvHeadDim / 2
	for i := range half {
		sin, cos := math.Sincos(float64(pos) * math.Pow(ropeBase, -float64(i)/half))
		for head := 0; head < kvChannels; head += kvHeadDim {
			x, y := out[head+i], out[head+i+half]
			out[head+i], out[head+i+half] = x*cos-y*sin, x*sin+y*cos
		}
	}
}

// fillKV fills p with the blocks of a sequence: keys of all layers, then values
// of all layers, each 16 tokens of 1024 channels. Larger blocks have more
// layers. What does not fill a token is left as it is.
func fillKV(p []byte, block int, r *rand.Rand, encode func(float64) uint16) {
	const row, layerBytes = 2 * kvChannels, 2 * kvChannels * kvTokens
	layers := max(1, block/(2*layerBytes))
	var kv [2][]*kvLayer
	for i := range kv {
		for range layers {
			kv[i] = append(kv[i], newKVLayer(r, i == 0))
		}
	}
	out := make([]float64, kvChannels)
	for n := 0; len(p) >= row; n++ {
		tokenNo, layer, half := n%kvTokens, n/kvTokens%layers, n/(kvTokens*layers)%2
		pos := n/(2*kvTokens*layers)*kvTokens + tokenNo
		kv[half][layer].token(r, pos, out)
		for c, v := range out {
			binary.LittleEndian.PutUint16(p[2*c:], encode(v))
		}
		p = p[row:]
	}
}

// bf16Of rounds to nearest, ties to even.
func bf16Of(v float64) uint16 {
	b := math.Float32bits(float32(v))
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// fp16Of truncates; values are far from the ends of the range, and what is
// too small becomes zero.
func fp16Of(v float64) uint16 {
	b := math.Float32bits(float32(v))
	sign, exp := uint16(b>>16&0x8000), int(b>>23&0xff)-127+15
	if exp <= 0 {
		return sign
	}
	return sign | uint16(min(exp, 30))<<10 | uint16(b>>13&0x3ff)
}
