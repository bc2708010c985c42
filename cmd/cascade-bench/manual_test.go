package main

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"cascadekv/cmd/manual"
	"cascadekv/internal/testing/testman"
)

// TestManPage: the page has each verb and flag, and renders without a warning.
func TestManPage(t *testing.T) {
	root := (&app{}).root()
	text := testman.Render(t, "cascade-bench.1", manual.Command(root, 1, time.Unix(1e9, 0)))
	seen := 0
	var check func(c *cobra.Command)
	check = func(c *cobra.Command) {
		for _, verb := range c.Commands() {
			if !verb.Hidden && verb.Name() != "help" {
				check(verb)
			}
		}
		if !c.HasSubCommands() {
			if !strings.Contains(text, c.CommandPath()) {
				t.Errorf("without %s", c.CommandPath())
			}
			for line := range strings.SplitSeq(c.NonInheritedFlags().FlagUsages(), "\n") {
				if words := strings.Fields(strings.ReplaceAll(line, `"`, "")); len(words) > 1 && words[0] != "-h," {
					seen++
					if !strings.Contains(text, words[0]) || !strings.Contains(text, words[len(words)-1]) {
						t.Errorf("%s without %s", c.CommandPath(), line)
					}
				}
			}
		}
	}
	check(root)
	if seen < 20 {
		t.Errorf("%d flags were looked for", seen)
	}
}
