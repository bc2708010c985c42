// Package plot draws figures for the HTML pages that verbs write: frame, axes, bars, curves and
// lines, as SVG that needs nothing else.
//
// Glossary
//
//	area  of a figure: what lies inside the axes, in which shares from 0 to 1 are placed
//
// The package does not know what is drawn: its users make bars and curves of
// their figures, and put them on pages of their own (Page).
package plot
