package manual

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/cpuguy83/go-md2man/v2/md2man"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"cascadekv/internal/buildinfo"
	"cascadekv/internal/config"
)

// Date returns the day that pages carry: SOURCE_DATE_EPOCH, in seconds, or
// without that variable the present one.
func Date() (time.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		return time.Now().UTC(), nil
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH: %q is no number of seconds", text)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// Main makes the man page of a command in that section, and its completions, and
// returns an exit status. The first argument is the directory (Write,
// WriteCompletions), further ones are sample configurations (WriteConfiguration).
func Main(args []string, root *cobra.Command, section int) int {
	if len(args) == 0 {
		fmt.Fprintf(os.Stderr, "%s: name the directory for man pages and completions\n", root.Name())
		return 2
	}
	errs := []error{Write(args[0], root, section)}
	if !root.CompletionOptions.DisableDefaultCmd {
		errs = append(errs, WriteCompletions(args[0], root))
	}
	for _, sample := range args[1:] {
		errs = append(errs, WriteConfiguration(args[0], sample))
	}
	if err := errors.Join(errs...); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", root.Name(), err)
		return 1
	}
	return 0
}

// Write makes the man page of a command in that section, in the folder man of dir.
func Write(dir string, root *cobra.Command, section int) error {
	date, err := Date()
	if err != nil {
		return err
	}
	return write(dir, "man", fmt.Sprintf("%s.%d", root.Name(), section), Command(root, section, date))
}

// WriteCompletions makes a command's completions in the folders bash, zsh and fish
// of dir, by the names under which these shells look for them.
func WriteCompletions(dir string, root *cobra.Command) error {
	var bash, zsh, fish bytes.Buffer
	err := errors.Join(root.GenBashCompletionV2(&bash, true), root.GenZshCompletion(&zsh), root.GenFishCompletion(&fish, true))
	if err != nil {
		return err
	}
	name := root.Name()
	return errors.Join(
		write(dir, "bash", name, bash.Bytes()),
		write(dir, "zsh", "_"+name, zsh.Bytes()),
		write(dir, "fish", name+".fish", fish.Bytes()))
}

// WriteConfiguration makes cascade.toml(5) of a sample configuration file in the
// folder man of dir.
func WriteConfiguration(dir, sample string) error {
	date, err := Date()
	if err != nil {
		return err
	}
	text, err := os.ReadFile(sample)
	if err != nil {
		return err
	}
	page, err := Configuration(string(text), date)
	if err != nil {
		return fmt.Errorf("%s: %w", sample, err)
	}
	return write(dir, "man", "cascade.toml.5", page)
}

func write(dir, folder, name string, data []byte) error {
	if err := os.MkdirAll(filepath.Join(dir, folder), 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, folder, name), data, 0o644)
}

// page is a man page in Markdown that is being written.
type page struct {
	strings.Builder
}

// newPage begins the page name(section), which short describes in a line. Its foot
// has the version of the package, PACKAGE_VERSION, or that of this program.
func newPage(name string, section int, date time.Time, short string) *page {
	p := &page{}
	version := cmp.Or(os.Getenv("PACKAGE_VERSION"), strings.TrimPrefix(buildinfo.Read().Version, "v"))
	fmt.Fprintf(p, "%% %q \"%d\" %q \"CASCADE %s\" \"CASCADE\"\n\n# NAME\n%s - %s\n\n",
		strings.ToUpper(name), section, date.Format(time.DateOnly), version, name, lower(short))
	return p
}

// lower returns a phrase as it stands after a dash.
func lower(s string) string { return strings.ToLower(s[:1]) + s[1:] }

func (p *page) section(name string) { fmt.Fprintf(p, "\n# %s\n", name) }

// special are the characters that Markdown may take for markup.
var special = regexp.MustCompile("[\\\\`*_{}\\[\\]()#+\\-.!:|&<>~^]")

// plain quotes text, so that it stays as it is. Some readers of pages take ASCII alone.
func plain(s string) string {
	return special.ReplaceAllString(strings.ReplaceAll(s, "…", "..."), `\$0`)
}

// head begins a line that is a paragraph to itself: "Exit status: 0 clean".
var head = regexp.MustCompile(`^[A-Z][a-z]+( [a-z]+)?: `)

// text writes paragraphs, which empty lines separate. Lines that are indented are
// kept as they are.
func (p *page) text(s string) {
	verbatim, last := false, ""
	for line := range strings.SplitSeq(strings.TrimSpace(s), "\n") {
		if head.MatchString(line) && strings.HasSuffix(last, ".") {
			p.WriteString("\n")
		}
		last = line
		indented := strings.HasPrefix(line, "  ")
		switch {
		case indented && !verbatim:
			p.WriteString("\n```\n")
		case !indented && verbatim:
			p.WriteString("```\n\n")
		}
		if verbatim = indented; verbatim {
			fmt.Fprintf(p, "%s\n", strings.TrimPrefix(line, "  "))
			continue
		}
		fmt.Fprintf(p, "%s\n", plain(line))
	}
	if verbatim {
		p.WriteString("```\n")
	}
	p.WriteString("\n")
}

// term writes an entry of a list: its name, in Markdown, and its paragraphs.
func (p *page) term(name string, paragraphs ...string) {
	fmt.Fprintf(p, "%s\n: ", name)
	for i, s := range paragraphs {
		if i > 0 {
			p.WriteString("\n    ")
		}
		fmt.Fprintf(p, "%s\n", plain(strings.Join(strings.Fields(s), " ")))
	}
	p.WriteString("\n")
}

// flags writes the flags that are not hidden.
func (p *page) flags(set *pflag.FlagSet) {
	set.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		kind, usage := pflag.UnquoteUsage(f)
		name := "**" + plain("--"+f.Name) + "**"
		if f.Shorthand != "" {
			name = "**" + plain("-"+f.Shorthand) + "**, " + name
		}
		if kind != "" {
			name += " *" + plain(kind) + "*"
		}
		if value := f.DefValue; value != "" && value != "false" && value != "0" && value != "0s" && value != "[]" && !strings.Contains(usage, "(default") {
			usage += " (default " + value + ")"
		}
		p.term(name, usage)
	})
}

// Command returns the man page of a command: its verbs, those below them, and the
// flags of each.
func Command(root *cobra.Command, section int, date time.Time) []byte {
	p := newPage(root.Name(), section, date, root.Short)
	p.section("SYNOPSIS")
	if root.HasAvailableSubCommands() {
		fmt.Fprintf(p, "**%s** *VERB* [*FLAGS*] [*ARGUMENTS*]\n", plain(root.Name()))
	} else {
		fmt.Fprintf(p, "**%s** [*FLAGS*]\n", plain(root.Name()))
	}
	p.section("DESCRIPTION")
	p.text(description(root))
	if root.HasAvailableSubCommands() {
		p.section("VERBS")
		p.verbs(root)
	}
	p.section("OPTIONS")
	p.flags(root.NonInheritedFlags())
	p.section("FILES")
	p.term("*"+plain(config.SystemDir+"/cascade.toml")+"*", "The configuration of ranks on this node, cascade.toml(5).")
	p.section("SEE ALSO")
	p.seeAlso(fmt.Sprintf("%s(%d)", root.Name(), section))
	return md2man.Render([]byte(p.String()))
}

// pages are those that refer to each other.
var pages = []string{"cascade(1)", "cascade-bench(1)", "cascade-gpu(1)", "cascaded(8)", "cascade.toml(5)"}

// seeAlso names all pages but one.
func (p *page) seeAlso(self string) {
	var others []string
	for _, name := range pages {
		if name != self {
			title, section, _ := strings.Cut(name, "(")
			others = append(others, "**"+plain(title)+"**"+plain("("+section))
		}
	}
	fmt.Fprintln(p, strings.Join(others, ", "))
}

func description(c *cobra.Command) string {
	if c.Long != "" {
		return c.Long
	}
	return c.Short + "."
}

// verbs writes a subsection for each verb below c that has none below it.
func (p *page) verbs(c *cobra.Command) {
	for _, verb := range c.Commands() {
		if verb.IsAdditionalHelpTopicCommand() || !verb.IsAvailableCommand() || verb.Name() == "help" || verb.Name() == "completion" {
			continue
		}
		if verb.HasAvailableSubCommands() {
			p.verbs(verb)
			continue
		}
		fmt.Fprintf(p, "\n### %s\n", plain(strings.TrimSuffix(verb.UseLine(), " [flags]")))
		p.text(description(verb))
		p.flags(verb.NonInheritedFlags())
		if verb.Example != "" {
			p.text("  " + strings.TrimSpace(verb.Example))
		}
	}
}
