package dht

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/vmihailenco/msgpack/v5"

	"cascadekv/dht/directory"
)

// A message is two bytes, version and kind, and one msgpack value: see
// docs/protocol.md, "Between ranks: messages".

const messageVersion = 1

type kind byte

const (
	kindAnnounce kind = 1 + iota // statements for a home
	kindLocate                   // where keys lie
	kindBury                     // a name is deleted
	kindDrop                     // copies that are out of date, to their owner
	kindTouch                    // blocks that were used elsewhere
	kindWhere                    // an owner's newest statement about a name
	kindRefute                   // a copy that is not where its statement says
	kindClear                    // a namespace is emptied
	kindStatus                   // what a rank says of itself
)

// errBadMessage marks what no rank of this version sends.
var errBadMessage = errors.New("dht: bad message: all ranks of a job must run one version of cascaded")

// What asks about one name, or about the names of a request.
type keysMessage struct {
	_msgpack struct{} `msgpack:",as_array"`

	Namespace string
	Keys      []string
}

type buryMessage struct {
	_msgpack struct{} `msgpack:",as_array"`

	Namespace, Key string
	Stamp          uint64
}

type clearMessage struct {
	_msgpack struct{} `msgpack:",as_array"`

	Namespace string
	All       bool
}

type staleMessage struct {
	_msgpack struct{} `msgpack:",as_array"`

	Namespace, Key string
	Before         uint64
}

// copiesMessage answers kindLocate: for each key its copies. Names come without
// namespace and key, which the asker knows.
type copiesMessage [][]directory.Statement

func encode(k kind, v any) ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte(messageVersion)
	b.WriteByte(byte(k))
	if v != nil {
		if err := msgpack.NewEncoder(&b).Encode(v); err != nil {
			return nil, fmt.Errorf("dht: message kind %d: %w", k, err)
		}
	}
	return b.Bytes(), nil
}

func split(msg []byte) (kind, []byte, error) {
	if len(msg) < 2 || msg[0] != messageVersion {
		return 0, nil, fmt.Errorf("%w: it begins with %x", errBadMessage, msg[:min(len(msg), 2)])
	}
	return kind(msg[1]), msg[2:], nil
}

func decode(body []byte, v any) error {
	if err := msgpack.Unmarshal(body, v); err != nil {
		return fmt.Errorf("%w: %w", errBadMessage, err)
	}
	return nil
}

// reply encodes an answer, which needs no head: the asker knows what it asked.
func reply(v any) ([]byte, error) { return msgpack.Marshal(v) }
