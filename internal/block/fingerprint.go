package block

import "github.com/cespare/xxhash/v2"

// Fingerprint stands for the name of a block where 64 bits do: policies, logs and hints may
// take two names for one now and then. It is never 0.
func Fingerprint[K string | []byte](namespace string, key K) uint64 {
	var sum uint64
	switch k := any(key).(type) {
	case string:
		sum = xxhash.Sum64String(k)
	case []byte:
		sum = xxhash.Sum64(k)
	}
	return fingerprint(spaceOf(namespace), sum)
}

// Fingerprints are those of some keys, in parallel to them.
func Fingerprints[K string | []byte](namespace string, keys ...K) []uint64 {
	space, all := spaceOf(namespace), make([]uint64, len(keys))
	switch keys := any(keys).(type) {
	case []string:
		for i, k := range keys {
			all[i] = fingerprint(space, xxhash.Sum64String(k))
		}
	case [][]byte:
		for i, k := range keys {
			all[i] = fingerprint(space, xxhash.Sum64(k))
		}
	}
	return all
}

func spaceOf(namespace string) uint64 { return 31 * xxhash.Sum64String(namespace) }

func fingerprint(space, key uint64) uint64 { return max(space+key, 1) }
