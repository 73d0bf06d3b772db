//! Colours, for a light and for a dark page.

/// Colours of the series, on a light background and on a dark one: eight that differ for readers who see no red or
/// green, after Okabe and Ito (2008), made darker for white and lighter for black.
pub(super) const SERIES: [(&str, &str); 8] = [
    ("#0072b2", "#56b4e9"),
    ("#c65102", "#ff9655"),
    ("#00805e", "#3ddbac"),
    ("#a63a79", "#ee9ac6"),
    ("#8a6d00", "#f0e442"),
    ("#2d8fc0", "#a6c8ff"),
    ("#6b3fa0", "#c9a6ff"),
    ("#6e7781", "#9aa4ae"),
];

/// Background, text, text of less weight, lines of the grid.
pub(super) const GROUND: [(&str, &str); 4] =
    [("#ffffff", "#0d1117"), ("#1f2328", "#f0f6fc"), ("#59636e", "#9da7b1"), ("#d8dee4", "#30363d")];

/// The style of all charts, for both schemes.
pub(crate) fn style() -> String {
    let light = colours(|(light, _)| light);
    let dark = colours(|(_, dark)| dark);
    format!(
        ".chart text{{font:13px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}}\
         .chart .title{{font-size:16px;font-weight:600}}.chart .small{{font-size:12px}}\
         .chart .end{{text-anchor:end}}.chart .middle{{text-anchor:middle}}\
         .chart .line{{fill:none;stroke-width:2.2;stroke-linejoin:round}}.chart .rule{{stroke-dasharray:7 4;stroke-width:1.8}}\
         {light}@media(prefers-color-scheme:dark){{{dark}}}"
    )
}

fn colours(pick: fn((&'static str, &'static str)) -> &'static str) -> String {
    let [ground, text, muted, grid] = GROUND.map(pick);
    let mut style = format!(
        ".chart .ground{{fill:{ground}}}.chart text{{fill:{text}}}.chart .muted{{fill:{muted}}}\
         .chart .grid{{stroke:{grid}}}.chart .axis{{stroke:{muted}}}.chart .rule{{stroke:{text}}}\
         .chart .halo{{stroke:{ground};stroke-width:4;paint-order:stroke;stroke-linejoin:round}}\
         .chart .edge{{stroke:{ground}}}"
    );
    for (at, colour) in SERIES.map(pick).into_iter().enumerate() {
        style += &format!(".chart .f{at}{{fill:{colour}}}.chart .s{at}{{stroke:{colour}}}");
    }
    style
}

#[cfg(test)]
mod tests {
    use super::{GROUND, SERIES};

    /// As WCAG 2.2 defines it.
    fn luminance(colour: &str) -> f64 {
        let part = |at: usize| f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
        let linear = |part: f64| if part <= 0.040_45 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) };
        0.2126 * linear(part(1)) + 0.7152 * linear(part(3)) + 0.0722 * linear(part(5))
    }

    fn contrast(one: &str, other: &str) -> f64 {
        let (one, other) = (luminance(one), luminance(other));
        (one.max(other) + 0.05) / (one.min(other) + 0.05)
    }

    #[test]
    fn colours_stand_out_from_their_background() {
        let (light, dark) = GROUND[0];
        for (on_light, on_dark) in SERIES {
            assert!(contrast(on_light, light) >= 3.0, "{on_light}: {}", contrast(on_light, light));
            assert!(contrast(on_dark, dark) >= 3.0, "{on_dark}: {}", contrast(on_dark, dark));
        }
        for (on_light, on_dark) in [GROUND[1], GROUND[2]] {
            assert!(contrast(on_light, light) >= 4.5 && contrast(on_dark, dark) >= 4.5, "{on_light}, {on_dark}");
        }
    }
}
