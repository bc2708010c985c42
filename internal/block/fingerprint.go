package block

import "github.com/cespare/xxhash/v2"

// Fingerprint stands for the name of a block where 64 bits do: policies, logs and hints may
// take two names for one now and then. It is never 0.
func Fingerprint[K string | []byte](namespace string, key K) uint64 {
	return fingerprint(spaceOf(namespace), key)
}

// Fingerprints are those of some keys, in parallel to them.
func Fingerprints[K string | []byte](namespace string, keys ...K) []uint64 {
	space, all := spaceOf(namespace), make([]uint64, len(keys))
	for i, k := range keys {
		all[i] = fingerprint(space, k)
	}
	return all
}

func spaceOf(namespace string) uint64 { return 31 * xxhash.Sum64String(namespace) }

func fingerprint[K string | []byte](space uint64, key K) uint64 {
	sum := space
	switch k := any(key).(type) {
	case string:
		sum += xxhash.Sum64String(k)
	case []byte:
		sum += xxhash.Sum64(k)
	}
	return max(sum, 1)
}
