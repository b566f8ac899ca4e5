"""How a report's page looks: one style sheet, for light and dark, for screens and paper."""

STYLE = """
:root{--bg:#fbfbfa;--ink:#1c1e21;--soft:#5d646d;--line:#dfe2e6;--card:#fff;
--c0:#1c1e21;--c1:#0067a8;--c2:#b8500a;--c3:#8a3ffc;--c4:#007d5c;--c5:#b0357e;--c6:#8a6500;--c7:#4d5b6b}
@media screen and (prefers-color-scheme:dark){:root{--bg:#121417;--ink:#e8eaed;--soft:#9aa3ad;--line:#2b3036;--card:#1a1d21;
--c0:#e8eaed;--c1:#5db4ff;--c2:#ff9d5c;--c3:#c3a1ff;--c4:#3fd0a4;--c5:#ff8ac6;--c6:#e8c14a;--c7:#a8b4c2}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:960px;margin:0 auto;padding:40px 20px 60px}
header{border-bottom:1px solid var(--line);margin-bottom:24px;padding-bottom:16px}
.kicker{margin:0;color:var(--soft);font-size:13px;letter-spacing:.04em}
h1{margin:2px 0 14px;font-size:28px;line-height:1.2;overflow-wrap:anywhere}
h2{margin:0 0 2px;font-size:19px}
.facts{display:flex;flex-wrap:wrap;gap:6px 28px;margin:0}
.facts dt{font-size:12px;color:var(--soft)}
.facts dd{margin:0;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
section{margin:36px 0}
.said{margin:2px 0 10px;color:var(--soft);font-size:14px}
.none{padding:18px;border:1px dashed var(--line);border-radius:8px;color:var(--soft)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(168px,1fr));gap:12px}
.tile{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 14px}
.tile h2{font-size:13px;font-weight:600;color:var(--soft)}
.tile p{margin:0;color:var(--soft);font-size:13px;overflow-wrap:anywhere}
.tile .big{color:var(--ink);font-size:26px;font-weight:650;line-height:1.3;font-variant-numeric:tabular-nums}
svg{display:block;width:100%;height:auto}
.plot{overflow-x:auto;background:var(--card);border:1px solid var(--line);border-radius:10px}
.plot+.said{margin-top:8px}
.grid{stroke:var(--line);stroke-width:1}
.mark{stroke:var(--soft);stroke-width:1;stroke-dasharray:3 3}
.tick{fill:var(--soft);stroke:var(--card);stroke-width:3px;paint-order:stroke;font-size:12px;font-variant-numeric:tabular-nums}
.axis{fill:var(--soft);font-size:12px}
.line{fill:none;stroke-width:2;stroke-linejoin:round}
.line:hover{stroke-width:3.5}
.area{stroke:none;opacity:.16}
.dot{stroke:none;opacity:.55}
.dot:hover{opacity:1}
.line.c0{stroke:var(--c0);stroke-width:2.6}.line.c1{stroke:var(--c1)}.line.c2{stroke:var(--c2)}.line.c3{stroke:var(--c3)}
.line.c4{stroke:var(--c4)}.line.c5{stroke:var(--c5)}.line.c6{stroke:var(--c6)}.line.c7{stroke:var(--c7)}
.area.c1,.dot.c1{fill:var(--c1)}.area.c2,.dot.c2{fill:var(--c2)}.area.c3,.dot.c3{fill:var(--c3)}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 20px;margin:10px 0 0;padding:0;font-size:14px}
.legend li{overflow-wrap:anywhere;display:flex;align-items:center;gap:8px}
.legend svg{width:30px;flex:none}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:13.5px;font-variant-numeric:tabular-nums}
th,td{padding:6px 8px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line)}
thead th{color:var(--soft);font-weight:600}
th:first-child{text-align:left}
tbody th{font-weight:500}
th:first-child{position:sticky;left:0;background:var(--bg)}
.against thead th{white-space:normal;min-width:7em}
.ends td:not(:last-child){text-align:left}
.ends th:nth-child(2){text-align:left}
dl dt{font-weight:600}
dl dd{margin:0 0 8px}
footer{margin-top:40px;padding-top:14px;border-top:1px solid var(--line);color:var(--soft);font-size:13px;overflow-wrap:anywhere}
@media(max-width:640px){main{padding:24px 16px 40px}h1{font-size:22px}.plot svg{width:620px}
.tick,.axis{font-size:15px}.facts{gap:6px 20px}
th:first-child{white-space:normal;overflow-wrap:anywhere;min-width:7em;max-width:40vw}}
@media print{@page{margin:14mm}body{font-size:13px;background:none}main{max-width:none;padding:0}section{margin:20px 0}
h2{break-after:avoid}tr,.tile,.plot,.waits,.busy,.queue,.large{break-inside:avoid}thead{display:table-header-group}
.scroll,.plot{overflow:visible}.plot svg{max-height:58mm}table{font-size:11px}
th,td{padding:3px 5px}th:first-child{position:static;background:none}}
"""
