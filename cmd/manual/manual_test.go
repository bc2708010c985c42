package manual

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"cascadekv/internal/config"
	"cascadekv/internal/testing/testman"
)

const sample = "../../configs/cascade.toml"

// tool has what Markdown and roff could take for markup.
func tool() *cobra.Command {
	run := func(*cobra.Command, []string) {}
	root := &cobra.Command{Use: "tool", Short: "Do things", Long: "Do *things*.\nExit status: 0 done, 1 <not> done.\n\n.dot begins\n'tick' begins\n100%d of a\\nb"}
	root.PersistentFlags().Bool("everywhere", false, "a flag of all verbs")
	verb := &cobra.Command{Use: "put [--key KEY] FILE…", Short: "Store | it", Run: run, Example: "  tool put <a> | b"}
	verb.Flags().StringP("some_key", "s", "a_b_c", "a `key` such as {rank}, _b_ or #c")
	verb.Flags().Bool("secret", false, "nobody sees this")
	_ = verb.Flags().MarkHidden("secret")
	below := &cobra.Command{Use: "trace", Short: "More"}
	below.AddCommand(&cobra.Command{Use: "stats", Short: "Count", Run: run, Long: "Count these:\n  a_b   [first]\n  *c*   <second>\nAnd so on."})
	root.AddCommand(verb, below, &cobra.Command{Use: "gone", Hidden: true, Run: run})
	return root
}

func TestCommandKeepsTexts(t *testing.T) {
	text := testman.Render(t, "tool.1", Command(tool(), 1, time.Unix(1e9, 0).UTC()))
	for _, want := range []string{
		"NAME tool - do things SYNOPSIS tool VERB",
		"Do *things*. Exit status: 0 done, 1 <not> done. .dot begins 'tick' begins 100%d of a\\nb VERBS",
		"tool put [--key KEY] FILE... Store | it. -s, --some_key key a key such as {rank}, _b_ or #c (default a_b_c) tool put <a> | b",
		"tool trace stats Count these: a_b [first] *c* <second> And so on.",
		"OPTIONS --everywhere a flag of all verbs",
		"2001-09-09",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	for _, hidden := range []string{"secret", "gone", "--help"} {
		if strings.Contains(text, hidden) {
			t.Errorf("%q is in\n%s", hidden, text)
		}
	}
}

// TestConfiguration: the page has every key with its default and each sentence of
// the sample.
func TestConfiguration(t *testing.T) {
	data, err := os.ReadFile(sample)
	if err != nil {
		t.Fatal(err)
	}
	page, err := Configuration(string(data), time.Unix(1e9, 0))
	if err != nil {
		t.Fatal(err)
	}
	text := testman.Render(t, "cascade.toml.5", page)
	defaults := config.Default()
	for _, k := range config.Keys() {
		value := strings.ReplaceAll(k.TOML(&defaults), "µ", "u") // as the sample has it
		for _, want := range []string{k.Path + " = " + value + " ", "Variable " + k.Env() + ", flag --" + k.Flag() + "."} {
			if !strings.Contains(text, want) {
				t.Errorf("no %q", want)
			}
		}
	}
	words := strings.Fields(text)
	joined := " " + strings.Join(words, "") // where lines end differs
	for line := range strings.SplitSeq(string(data), "\n") {
		if comment, ok := strings.CutPrefix(line, "# "); ok && !strings.Contains(joined, strings.Join(strings.Fields(comment), "")) {
			t.Errorf("without the line %q", line)
		}
	}
	if !strings.Contains(text, "DESCRIPTION Configuration of one") || !strings.Contains(text, "KEYS rank = 0 Number of this rank") {
		t.Error("the sections are not those of the sample")
	}
}

func TestConfigurationRefuses(t *testing.T) {
	data, err := os.ReadFile(sample)
	if err != nil {
		t.Fatal(err)
	}
	for what, text := range map[string]string{
		"a key less":  strings.Replace(string(data), "#homes = 2\n", "", 1),
		"another key": string(data) + "\n# What is this. Immutable.\n#nonsense = 1\n",
	} {
		if _, err := Configuration(text, time.Unix(1e9, 0)); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}

func TestFiles(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1000000000")
	dir := t.TempDir()
	if status := Main([]string{dir, sample}, tool(), 1); status != 0 {
		t.Fatalf("status %d", status)
	}
	for name, want := range map[string]string{
		"man/tool.1": "2001-09-09", "man/cascade.toml.5": "2001-09-09",
		"bash/tool": "complete -o default", "zsh/_tool": "#compdef tool", "fish/tool.fish": "complete -c tool",
	} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: %v, no %q", name, err, want)
		}
	}
	t.Setenv("SOURCE_DATE_EPOCH", "yesterday")
	if status := Main([]string{dir}, tool(), 1); status != 1 {
		t.Errorf("status %d with a date that is none", status)
	}
	if status := Main(nil, tool(), 1); status != 2 {
		t.Errorf("status %d without a directory", status)
	}
}
