package locks

import (
	"context"
	"errors"
	"testing"
)

func TestToken(t *testing.T) {
	token := NewToken(Writing)
	if err := token.Take(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := make(chan error)
	go func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		got <- token.Take(ended)
		err := token.Take(context.Background())
		token.Give()
		got <- err
	}()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Errorf("a second token is taken: %v", err)
	}
	token.Give()
	if err := <-got; err != nil {
		t.Error(err)
	}
}

func TestRanksHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for r := range Events + 1 {
		if name := r.String(); name == "" || seen[name] {
			t.Errorf("rank %d is called %q", r, name)
		} else {
			seen[name] = true
		}
	}
}
