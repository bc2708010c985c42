package segment

// Layouter lays out files on a file system with stripes; lustre/layout has one.
// Its methods run where writes do and may take as long as the file system.
// Whatever fails in them, files are written all the same.
type Layouter interface {
	// Prepare is called with the directory of this incarnation, in which there is
	// nothing but its token, an empty file that needs no stripes, before its
	// first file is made.
	Prepare(dir string)
	// Describe is called with each file that was just made, still empty. It
	// returns the text for the layout field of the header page
	// (docs/format.md §1.3), of which 1024 bytes are kept.
	Describe(path string) string
}
