package codec

import "encoding/binary"

// Shuffle deals the bytes of src out to planes of stride-byte values, one
// after the other in dst; len(dst) == len(src), and they do not overlap. Bytes
// left over after the last whole value follow the last plane. Strides other
// than 2 and 4 copy.
func Shuffle(dst, src []byte, stride int) {
	n := len(src) / max(stride, 1)
	switch stride {
	case 2:
		shuffle2(dst[:n], dst[n:2*n], src)
	case 4:
		shuffle4(dst[:n], dst[n:2*n], dst[2*n:3*n], dst[3*n:4*n], src)
	default:
		n, stride = len(src), 1
		copy(dst, src)
	}
	copy(dst[n*stride:], src[n*stride:])
}

// Unshuffle undoes Shuffle, under the same conditions.
func Unshuffle(dst, src []byte, stride int) {
	n := len(src) / max(stride, 1)
	switch stride {
	case 2:
		unshuffle2(dst, src[:n], src[n:2*n])
	case 4:
		unshuffle4(dst, src[:n], src[n:2*n], src[2*n:3*n], src[3*n:4*n])
	default:
		n, stride = len(src), 1
		copy(dst, src)
	}
	copy(dst[n*stride:], src[n*stride:])
}

// deal8 exchanges the odd bytes of x with the even bytes of y: a transposition
// of each 2 × 2 bytes, and so its own inverse.
func deal8(x, y uint64) (even, odd uint64) {
	const m = 0x00ff00ff00ff00ff
	return x&m | y&m<<8, x>>8&m | y&^m
}

// deal16 does the same with pairs of bytes.
func deal16(x, y uint64) (even, odd uint64) {
	const m = 0x0000ffff0000ffff
	return x&m | y&m<<16, x>>16&m | y&^m
}

// load loads two runs of 4 bytes that lie apart, store stores them: the third
// step of the transposition.
func load(p []byte, i, j int) uint64 {
	return uint64(binary.LittleEndian.Uint32(p[i:])) | uint64(binary.LittleEndian.Uint32(p[j:]))<<32
}

func store(p []byte, i, j int, v uint64) {
	binary.LittleEndian.PutUint32(p[i:], uint32(v))
	binary.LittleEndian.PutUint32(p[j:], uint32(v>>32))
}

// shuffle2 fills p0 and p1, of equal length n, from the first 2n bytes of src.
// Arrays of a fixed size let the compiler leave out checks of bounds.
func shuffle2(p0, p1, src []byte) {
	for len(p0) >= 16 && len(p1) >= 16 && len(src) >= 32 {
		s, a, b := (*[32]byte)(src), (*[16]byte)(p0), (*[16]byte)(p1)
		even, odd := deal8(deal16(load(s[:], 0, 8), load(s[:], 4, 12)))
		binary.LittleEndian.PutUint64(a[:], even)
		binary.LittleEndian.PutUint64(b[:], odd)
		even, odd = deal8(deal16(load(s[:], 16, 24), load(s[:], 20, 28)))
		binary.LittleEndian.PutUint64(a[8:], even)
		binary.LittleEndian.PutUint64(b[8:], odd)
		p0, p1, src = p0[16:], p1[16:], src[32:]
	}
	for i := range p0 {
		p0[i], p1[i] = src[2*i], src[2*i+1]
	}
}

func unshuffle2(dst, p0, p1 []byte) {
	for len(p0) >= 16 && len(p1) >= 16 && len(dst) >= 32 {
		d, a, b := (*[32]byte)(dst), (*[16]byte)(p0), (*[16]byte)(p1)
		x, y := deal16(deal8(binary.LittleEndian.Uint64(a[:]), binary.LittleEndian.Uint64(b[:])))
		store(d[:], 0, 8, x)
		store(d[:], 4, 12, y)
		x, y = deal16(deal8(binary.LittleEndian.Uint64(a[8:]), binary.LittleEndian.Uint64(b[8:])))
		store(d[:], 16, 24, x)
		store(d[:], 20, 28, y)
		p0, p1, dst = p0[16:], p1[16:], dst[32:]
	}
	for i := range p0 {
		dst[2*i], dst[2*i+1] = p0[i], p1[i]
	}
}

// shuffle4 is shuffle2 with planes of equal length n from 4n bytes.
func shuffle4(p0, p1, p2, p3, src []byte) {
	i := 0
	for ; len(src) >= 32 && i+8 <= len(p0) && i+8 <= len(p1) && i+8 <= len(p2) && i+8 <= len(p3); i += 8 {
		s := (*[32]byte)(src)
		x, xh := deal16(load(s[:], 0, 16), load(s[:], 8, 24))
		y, yh := deal16(load(s[:], 4, 20), load(s[:], 12, 28))
		a, b := deal8(x, y)
		c, d := deal8(xh, yh)
		binary.LittleEndian.PutUint64(p0[i:i+8], a)
		binary.LittleEndian.PutUint64(p1[i:i+8], b)
		binary.LittleEndian.PutUint64(p2[i:i+8], c)
		binary.LittleEndian.PutUint64(p3[i:i+8], d)
		src = src[32:]
	}
	for ; i < len(p0); i++ {
		p0[i], p1[i], p2[i], p3[i] = src[0], src[1], src[2], src[3]
		src = src[4:]
	}
}

func unshuffle4(dst, p0, p1, p2, p3 []byte) {
	i := 0
	for ; len(dst) >= 32 && i+8 <= len(p0) && i+8 <= len(p1) && i+8 <= len(p2) && i+8 <= len(p3); i += 8 {
		d := (*[32]byte)(dst)
		x, y := deal8(binary.LittleEndian.Uint64(p0[i:i+8]), binary.LittleEndian.Uint64(p1[i:i+8]))
		xh, yh := deal8(binary.LittleEndian.Uint64(p2[i:i+8]), binary.LittleEndian.Uint64(p3[i:i+8]))
		e0, e2 := deal16(x, xh)
		e1, e3 := deal16(y, yh)
		store(d[:], 0, 16, e0)
		store(d[:], 8, 24, e2)
		store(d[:], 4, 20, e1)
		store(d[:], 12, 28, e3)
		dst = dst[32:]
	}
	for ; i < len(p0); i++ {
		dst[0], dst[1], dst[2], dst[3] = p0[i], p1[i], p2[i], p3[i]
		dst = dst[4:]
	}
}
