package plan

import (
	"errors"
	"fmt"
	"strings"
)

// Model is what the size of a model's KV cache comes from.
type Model struct {
	Name         string  `json:"name"`
	Layers       int     `json:"layers"`
	KVHeads      int     `json:"kv_heads"` // of a layer: fewer than of queries where these share them
	HeadDim      int     `json:"head_dim"`
	ElementBytes int     `json:"element_bytes"` // of a number, in the cache and in the weights
	Billions     float64 `json:"billion_parameters"`
}

// BytesPerToken is the KV cache of a token by CASCADE's equation 1: keys and values of all layers.
func (m Model) BytesPerToken() int64 {
	return 2 * int64(m.Layers) * int64(m.KVHeads) * int64(m.HeadDim) * int64(m.ElementBytes)
}

// WeightBytes is the size of the weights.
func (m Model) WeightBytes() int64 { return int64(m.Billions * 1e9 * float64(m.ElementBytes)) }

// models are as in the config.json that each is published with: num_hidden_layers,
// num_key_value_heads and head_dim, in 16 bits.
var models = []Model{
	{"llama-2-7b", 32, 32, 128, 2, 6.74},
	{"llama-2-13b", 40, 40, 128, 2, 13.0},
	{"llama-2-70b", 80, 8, 128, 2, 69.0},
	{"llama-3.1-8b", 32, 8, 128, 2, 8.03},
	{"llama-3.1-70b", 80, 8, 128, 2, 70.6},
	{"llama-3.1-405b", 126, 8, 128, 2, 405.9},
	{"mistral-7b", 32, 8, 128, 2, 7.25},
	{"mixtral-8x7b", 32, 8, 128, 2, 46.7},
	{"qwen2.5-7b", 28, 4, 128, 2, 7.62},
	{"qwen2.5-32b", 64, 8, 128, 2, 32.8},
	{"qwen2.5-72b", 80, 8, 128, 2, 72.7},
	{"glm-4-9b", 40, 2, 128, 2, 9.4},
}

// ErrNoModel marks a name that is no model's.
var ErrNoModel = errors.New("plan: unknown model")

// ModelNamed finds a model by its name, in upper or lower case. The error matches ErrNoModel.
func ModelNamed(name string) (Model, error) {
	for _, m := range models {
		if strings.EqualFold(m.Name, name) {
			return m, nil
		}
	}
	return Model{}, fmt.Errorf("%w %q: choose among %s, or give the bytes of KV cache of a token", ErrNoModel, name, strings.Join(Models(), ", "))
}

// Models returns the names of the models. The caller owns the slice.
func Models() []string {
	var names []string
	for _, m := range models {
		names = append(names, m.Name)
	}
	return names
}
