package identity

import (
	"encoding/json"
	"os"
	"slices"
	"testing"
)

// golden is what cascade/testdata/identity.json has of names.
type golden struct {
	Chains []struct {
		BlockTokens int `json:"block_tokens"`
		Tokens      []uint32
		Keys        []string
	}
	Namespaces []struct {
		Fields struct {
			Model, Revision, Dtype, Layout string

			BlockTokens uint32 `json:"block_tokens"`
			TPRank      uint32 `json:"tp_rank"`
			TPSize      uint32 `json:"tp_size"`
			PPRank      uint32 `json:"pp_rank"`
			PPSize      uint32 `json:"pp_size"`
			Salt        string
		}
		Name string
	}
}

func readGolden(t *testing.T) (g golden) {
	t.Helper()
	text, err := os.ReadFile("../testdata/identity.json")
	if err == nil {
		err = json.Unmarshal(text, &g)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(g.Chains) == 0 || len(g.Namespaces) == 0 {
		t.Fatal("no golden vectors")
	}
	return g
}

func TestGoldenChainKeys(t *testing.T) {
	for i, c := range readGolden(t).Chains {
		var got []string
		for _, k := range ChainKeys(c.Tokens, c.BlockTokens) {
			got = append(got, k.String())
		}
		if !slices.Equal(got, c.Keys) {
			t.Errorf("chain %d:\n%v, want\n%v", i, got, c.Keys)
		}
	}
}

func TestGoldenNamespaces(t *testing.T) {
	seen := map[string]bool{}
	for _, n := range readGolden(t).Namespaces {
		if got := Namespace(n.Fields).String(); got != n.Name {
			t.Errorf("%+v is called %s, want %s", n.Fields, got, n.Name)
		}
		if seen[n.Name] {
			t.Errorf("%s is the name of two namespaces", n.Name)
		}
		seen[n.Name] = true
	}
}
