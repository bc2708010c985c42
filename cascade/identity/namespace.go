package identity

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"path"
	"strings"
)

// Namespace lists everything that must match for block bytes to be reusable. Two
// engines share blocks exactly when all fields are equal.
type Namespace struct {
	Model       string // as the engine names it, e.g. "meta-llama/Llama-3.1-8B"
	Revision    string // of the weights
	Dtype       string // of the KV tensors, e.g. "bfloat16"
	Layout      string // of a block's bytes, e.g. "kv-layer-token-head"
	BlockTokens uint32 // tokens in a block
	TPRank      uint32
	TPSize      uint32
	PPRank      uint32
	PPSize      uint32
	Salt        string // keeps tenants apart; "" where sharing is allowed
}

// String returns the namespace's name: the model's last path element, for
// people, and 32 hex digits of SHA-256 over all fields, for uniqueness. Each
// field is preceded by its length, so no two different namespaces meet.
func (n Namespace) String() string {
	h := sha256.New()
	var num [4]byte
	write := func(b []byte) {
		binary.LittleEndian.PutUint32(num[:], uint32(len(b)))
		h.Write(num[:])
		h.Write(b)
	}
	for _, s := range []string{n.Model, n.Revision, n.Dtype, n.Layout, n.Salt} {
		write([]byte(s))
	}
	for _, v := range []uint32{n.BlockTokens, n.TPRank, n.TPSize, n.PPRank, n.PPSize} {
		write(binary.LittleEndian.AppendUint32(nil, v))
	}
	return readable(n.Model) + "-" + hex.EncodeToString(h.Sum(nil)[:16])
}

// readable is the last path element of a model name, letters, digits, dots and
// dashes only, 64 bytes at most.
func readable(model string) string {
	s := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '-':
			return r
		}
		return '_'
	}, path.Base(model))
	return s[:min(len(s), 64)]
}
