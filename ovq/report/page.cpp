#include "ovq/report/page.h"

#include <fmt/format.h>

#include <set>

#include "ovq/plot/markup.h"

namespace ovq::report {
namespace {

using plot::escaped;

constexpr const char* kStyle = R"(
:root{color-scheme:light dark;--ink:#222;--soft:#5c5c5c;--paper:#fff;--card:#f6f7f8;--edge:#dcdfe3;--link:#005a9c;--good:#00694c;--bad:#b23c00;--open:#666}
@media (prefers-color-scheme:dark){:root{--ink:#e8e8e8;--soft:#aaa;--paper:#181a1d;--card:#212429;--edge:#363a40;--link:#7cc4ff;--good:#3ddcab;--bad:#ff9d66;--open:#aaa}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:76rem;padding:1rem 1rem 4rem;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:1.7rem;line-height:1.25;margin:.6rem 0}
h2{font-size:1.25rem;line-height:1.3;margin:2.6rem 0 .4rem}
h3{font-size:1rem;margin:0 0 .3rem}
p{margin:.4rem 0;max-width:52rem}
a{color:var(--link)}
code{font-size:.9em;background:var(--card);border:1px solid var(--edge);border-radius:4px;padding:0 .3em;overflow-wrap:anywhere}
.soft{color:var(--soft)}
.verdict{font-weight:600;white-space:nowrap}
.holds{color:var(--good)}.fails{color:var(--bad)}.undecided{color:var(--open)}
.figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,27rem),1fr));gap:1rem;margin:1rem 0;align-items:start}
figure{margin:0;padding:.8rem;background:var(--card);border:1px solid var(--edge);border-radius:8px;min-width:0}
figcaption{font-size:.9rem}
svg.figure{display:block;width:100%;max-width:44rem;height:auto;margin:.4rem auto;--paper:transparent}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.9rem;margin:.5rem 0}
th,td{text-align:left;vertical-align:top;padding:.35rem .7rem .35rem 0;border-bottom:1px solid var(--edge)}
th{font-weight:600;color:var(--soft)}
.score td:nth-child(1){width:20%}.score td:nth-child(2){width:27%}
.check{padding-left:1.2em;text-indent:-1.2em}
.numbers td,.numbers th{white-space:nowrap;font-variant-numeric:tabular-nums}
summary{cursor:pointer;font-size:.9rem;color:var(--link)}
.tip{position:absolute;z-index:1;pointer-events:none;max-width:20rem;padding:.25rem .5rem;border-radius:4px;background:var(--ink);color:var(--paper);font-size:.85rem}
@media (max-width:44rem){
h1{font-size:1.4rem}
figure{padding:.6rem .4rem}
.cards thead{display:none}
.cards,.cards tbody{display:block}
.cards tr{display:block;padding:.6rem .8rem;margin:.6rem 0;background:var(--card);border:1px solid var(--edge);border-radius:8px}
.cards td,.score td:nth-child(n){display:block;width:auto;border:0;padding:.15rem 0}
.cards td[data-title]::before{content:attr(data-title) ": ";color:var(--soft)}
.cards td:empty{display:none}
}
)";

// Shows a point's title as a label beside it, for touch screens, which cannot hover. Uses no characters that XML would
// escape.
constexpr const char* kScript = R"(
const tip = document.createElement('div');
tip.className = 'tip';
tip.hidden = true;
document.body.append(tip);
for (const title of document.querySelectorAll('.point title')) {
  title.parentNode.dataset.tip = title.textContent;
  title.remove();
}
document.addEventListener('pointerover', event => {
  const point = event.target.closest('.point');
  tip.hidden = !point;
  if (!point) return;
  tip.textContent = point.dataset.tip;
  const box = point.getBoundingClientRect();
  const right = document.documentElement.clientWidth - tip.offsetWidth - 8;
  tip.style.left = Math.max(8, Math.min(box.left + box.width / 2 - tip.offsetWidth / 2, right)) + scrollX + 'px';
  tip.style.top = box.top + scrollY - tip.offsetHeight - 4 + 'px';
});
)";

}  // namespace

std::string html_page(const std::string& title, const std::string& body, int refresh_seconds) {
  const std::string refresh =
      refresh_seconds > 0 ? fmt::format(R"(<meta http-equiv="refresh" content="{}"/>)", refresh_seconds) : "";
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>{}"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>"
      "<link rel=\"icon\" href=\"data:,\"/>"
      "<title>{}</title><style>{}{}</style></head>\n<body>\n{}\n<script>{}</script></body></html>\n",
      refresh, escaped(title), plot::figure_style(), kStyle, body, kScript);
}

std::string html_table(const std::vector<std::string>& titles, const std::vector<std::vector<std::string>>& rows,
                       const std::string& kind) {
  std::string text = fmt::format(R"(<div class="scroll"><table class="{}"><thead><tr>)", kind);
  for (const std::string& title : titles) text += "<th>" + escaped(title) + "</th>";
  text += "</tr></thead><tbody>";
  for (const auto& row : rows) {
    text += "<tr>";
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string title = i < titles.size() ? titles[i] : "";
      text += title.empty() ? "<td>" : fmt::format(R"(<td data-title="{}">)", escaped(title));
      text += row[i] + "</td>";
    }
    text += "</tr>\n";
  }
  return text + "</tbody></table></div>\n";
}

std::string figure_numbers(const plot::Figure& figure) {
  std::set<double> columns;
  for (const plot::Series& series : figure.series) {
    if (series.look == plot::Look::reference) continue;
    for (const plot::Point& point : series.points) columns.insert(point.x);
  }
  std::vector<std::string> titles{figure.x.label};
  for (const double x : columns) titles.push_back(plot::value_text(figure.x.numbers, x));
  std::vector<std::vector<std::string>> rows;
  for (const plot::Series& series : figure.series) {
    std::vector<std::string>& row = rows.emplace_back(std::vector<std::string>{escaped(series.label)});
    for (const double x : columns) {
      std::string cell;
      for (const plot::Point& point : series.points) {
        if (point.x == x) cell = escaped(plot::point_text(figure.y, point));
      }
      row.push_back(cell);
    }
  }
  return "<details><summary>Numbers</summary>" + html_table(titles, rows, "numbers") + "</details>";
}

}  // namespace ovq::report
