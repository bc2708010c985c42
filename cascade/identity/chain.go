package identity

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
)

// ChainKey is the key of a block for engines that hand over tokens instead of
// keys: SHA-256(parent chain key ‖ tokens as little-endian uint32), the whole
// digest. It equals SGLang's page hash.
type ChainKey [sha256.Size]byte

// HeadKey returns the chain key of a chain's first block.
func HeadKey(tokens []uint32) ChainKey { return chainKey(nil, tokens) }

// Next returns the chain key of the block that follows k.
func (k ChainKey) Next(tokens []uint32) ChainKey { return chainKey(k[:], tokens) }

// String returns 64 lower-case hex digits, the form used as Entry.Key.
func (k ChainKey) String() string { return hex.EncodeToString(k[:]) }

func chainKey(parent []byte, tokens []uint32) (k ChainKey) {
	buf := make([]byte, 0, len(parent)+4*len(tokens))
	buf = append(buf, parent...)
	for _, t := range tokens {
		buf = binary.LittleEndian.AppendUint32(buf, t)
	}
	return sha256.Sum256(buf)
}

// ChainKeys returns the keys of all whole blocks of blockTokens tokens, head
// first. Tokens that do not fill a block have no key.
func ChainKeys(tokens []uint32, blockTokens int) []ChainKey {
	if blockTokens <= 0 {
		return nil
	}
	keys := make([]ChainKey, 0, len(tokens)/blockTokens)
	for ; len(tokens) >= blockTokens; tokens = tokens[blockTokens:] {
		if len(keys) == 0 {
			keys = append(keys, HeadKey(tokens[:blockTokens]))
		} else {
			keys = append(keys, keys[len(keys)-1].Next(tokens[:blockTokens]))
		}
	}
	return keys
}
