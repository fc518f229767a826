// A dashboard of ours as Grafana's published types have it: the v1 schema with the panel types that we use.
//
// JSON has the values of enums, not their names, and leaves out what has a default. What the data source Prometheus adds
// to a query, an annotation and a variable is not published in @grafana/schema: those fields are named here.
import type * as schema from "@grafana/schema";
import type * as barGauge from "./node_modules/@grafana/schema/dist/types/raw/composable/bargauge/panelcfg/x/BarGaugePanelCfg_types.gen";
import type * as heatmap from "./node_modules/@grafana/schema/dist/types/raw/composable/heatmap/panelcfg/x/HeatmapPanelCfg_types.gen";
import type * as timeline from "./node_modules/@grafana/schema/dist/types/raw/composable/statetimeline/panelcfg/x/StateTimelinePanelCfg_types.gen";
import type * as timeSeries from "./node_modules/@grafana/schema/dist/types/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";
import type * as trend from "./node_modules/@grafana/schema/dist/types/raw/composable/trend/panelcfg/x/TrendPanelCfg_types.gen";

type Plain<T> = T extends string ? `${T}`
  : T extends number ? (`${T}` extends `${infer N extends number}` ? N : never)
  : T extends object ? { [K in keyof T]: Plain<T[K]> }
  : T;
type Partly<T> = T extends unknown[] ? T : T extends object ? { [K in keyof T]?: Partly<T[K]> } : T;

interface Query extends schema.DataQuery {
  expr: string;
  legendFormat?: string;
  format?: "time_series" | "table" | "heatmap";
  range: boolean;
  instant: boolean;
  interval: string;
}

interface PanelOf<Type extends string, Options, Custom> extends Omit<schema.Panel, "type" | "options" | "fieldConfig" | "targets"> {
  type: Type;
  title: string;
  options: Partly<Options>;
  targets: Query[];
  fieldConfig: {
    defaults: Omit<schema.FieldConfig, "custom"> & { custom?: Partly<Custom> };
    overrides: schema.FieldConfigSource["overrides"];
  };
}

type Panel =
  | PanelOf<"timeseries", timeSeries.Options, timeSeries.FieldConfig>
  | PanelOf<"trend", trend.Options, trend.FieldConfig>
  | PanelOf<"state-timeline", timeline.Options, timeline.FieldConfig>
  | PanelOf<"heatmap", heatmap.Options, heatmap.FieldConfig>
  | PanelOf<"bargauge", barGauge.Options, Record<string, never>>;

interface Annotation extends Omit<schema.AnnotationQuery, "target"> {
  target: Query;
  expr: string;
  step: string;
  titleFormat: string;
  textFormat: string;
  tagKeys: string;
  useValueForTime: boolean;
}

interface Variable extends schema.VariableModel {
  definition: string;
}

export type Dashboard = Plain<Omit<schema.Dashboard, "panels" | "annotations" | "templating"> & {
  uid: string;
  title: string;
  panels: (Panel | schema.RowPanel)[];
  annotations: { list: Annotation[] };
  templating: { list: Variable[] };
}>;
